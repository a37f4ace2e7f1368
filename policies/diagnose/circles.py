"""Ranks that wait for themselves, through others."""

from __future__ import annotations

from collections.abc import Iterable


def on_circles(waits: Iterable[tuple[int, frozenset[int]]]) -> frozenset[int]:
    """Return the ranks that wait for themselves, directly or through others.

    Args:
        waits: ranks that wait, each with those that it waits for: one object for all that wait for the same ones, of
            whom there may be ten thousand.
    """
    # A node for each rank, and one for each set of ranks: it leads to all of them.
    nodes: dict[object, int] = {}
    sets: dict[int, frozenset[int]] = {}
    edges: list[tuple[int, int]] = []
    for rank, ahead in waits:
        of_set = nodes.setdefault(("set", id(ahead)), len(nodes))
        edges.append((nodes.setdefault(rank, len(nodes)), of_set))
        sets[of_set] = ahead
    edges += [
        (of_set, nodes.setdefault(rank, len(nodes))) for of_set, ahead in sets.items() for rank in ahead
    ]
    if not edges:
        return frozenset()
    import numpy as np  # noqa: PLC0415  (rare, and with scipy it costs a tenth of a second)
    from scipy.sparse import csr_matrix  # noqa: PLC0415
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    size, (starts, ends) = len(nodes), np.array(edges).T
    graph = csr_matrix((np.ones(len(edges)), (starts, ends)), shape=(size, size))
    part = connected_components(graph, connection="strong")[1]
    shared = np.bincount(part)[part] > 1
    return frozenset(node for node, at in nodes.items() if isinstance(node, int) and shared[at])
