"""Tracebacks of several ranks in one log, mixed."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.classify.mixed import separated

OWN = 'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\n    w[s]\nIndexError: out of range\n'
LOST = """Traceback (most recent call last):
  File "/job/a.py", line 9, in <module>
    work.wait()
RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [127.0.1.1]:42417: Connection reset by peer
"""


def of(rank: int, text: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in text.splitlines(keepends=True)]


def test_mixed_tracebacks_are_put_one_after_another() -> None:
    """Those that only lost a peer first, whichever rank wrote last; a line without a prefix stays where it belongs."""
    for own, lost in ((0, 3), (3, 0)):
        lines = [line for pair in zip_longest(of(own, OWN), of(lost, LOST), fillvalue="") for line in pair]
        assert separated("step 1\n" + "".join(lines)) == "step 1\n" + "".join(of(lost, LOST) + of(own, OWN))


def test_tracebacks_that_follow_each_other_stay_as_they_are() -> None:
    """Of several ranks, of one, or without a prefix."""
    for log in ("".join(of(0, OWN) + of(1, LOST)), "".join(of(0, OWN) + of(0, LOST)), OWN + LOST, ""):
        assert separated(log) is log


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([*OWN.splitlines(), *LOST.splitlines(), ""]))))
def test_no_line_is_lost(lines: list[tuple[int, str]]) -> None:
    """Whatever the ranks wrote: the same lines, in another order at most."""
    log = "".join(f"[rank{rank}]: {line}\n" for rank, line in lines)
    assert Counter(separated(log).splitlines()) == Counter(log.splitlines())
