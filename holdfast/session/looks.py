"""How often to look for what another process does."""

_SHARE = 0.1
"""Of the time that it takes, by which it may be noticed late."""
_SHORTEST_S = 0.0002


def pause_s(waited_s: float, expected_s: float, longest_s: float) -> float:
    """Return seconds until the next look, when one has waited for ``waited_s`` and expects ``expected_s`` in all.

    Each look takes the processor and the interpreter from the step; each one that comes late delays the next save.
    """
    return min(max(_SHARE * max(waited_s, expected_s), _SHORTEST_S), longest_s)
