"""Which lines a new version changed, and whether a failure came from one of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.escalate.changes import MOST_LINES, CodePlace, changed_lines, evidence, place

OLD = "import torch\n\ndef read():\n    return 1\n\ndef write():\n    return 2\n"


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        ("data.py:33 in read", CodePlace(file="data.py", line=33)),
        ("lib/a b:c.py:7 in <module>", CodePlace(file="lib/a b:c.py", line=7)),
        ("data.py in read", None),
        ("", None),
    ],
)
def test_where_a_traceback_ends(frame: str, found: CodePlace | None) -> None:
    """As ranks report it."""
    assert place(frame) == found


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (OLD, ()),
        (OLD.replace("return 1", "return 3"), ((4, 4),)),
        (OLD.replace("    return 1\n", "    one = 1\n    return one\n"), ((4, 5),)),
        (OLD.replace("    return 1\n", ""), ((3, 4),)),
        (OLD.replace("import torch\n", ""), ((1, 1),)),
        (OLD + "write()\n", ((8, 8),)),
    ],
)
def test_changed_lines(now: str, changed: tuple[tuple[int, int], ...]) -> None:
    """Where lines are gone, those beside them are changed."""
    assert changed_lines(OLD, now) == changed


def test_a_new_file_is_changed_from_end_to_end() -> None:
    """And an empty one has no line to fail in."""
    assert changed_lines(None, OLD) == ((1, 7),)
    assert changed_lines(None, "") == ()


def test_a_file_that_is_too_long_is_not_compared() -> None:
    """Not known is not unchanged: the answer states so."""
    with pytest.raises(ValueError, match="20000 lines"):
        changed_lines("a\n", "a\n" * (MOST_LINES + 1))


def test_only_a_changed_line_speaks_for_the_code() -> None:
    """The line itself, not its file."""
    assert "data.py:5 in read, a line that version v2 changed against v1" in evidence(
        "data.py:5 in read", ((4, 5),), "v1", "v2"
    )
    assert evidence("data.py:6 in read", ((4, 5),), "v1", "v2") == ""
    assert evidence("nowhere", ((4, 5),), "v1", "v2") == ""


_TEXT = st.lists(st.sampled_from(["a", "b", "c"]), max_size=12).map("\n".join)


@given(_TEXT, _TEXT)
def test_lines_that_are_not_in_a_stretch_were_there_before(before: str, now: str) -> None:
    """In their order: a subsequence of the old ones."""
    stretches = changed_lines(before, now)
    kept = [
        line
        for number, line in enumerate(now.splitlines(), 1)
        if not any(first <= number <= last for first, last in stretches)
    ]
    old = iter(before.splitlines())
    assert all(line in old for line in kept)
