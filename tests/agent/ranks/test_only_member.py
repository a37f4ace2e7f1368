"""A rank's report of a group of exceptions."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from holdfast.agent.ranks import exits, rank_main
from holdfast.agent.ranks.only_member import only_member
from holdfast.agent.ranks.rank_main import RankOrder

SCRIPT = """
def score():
    return {}["reward"]

def train(*more):
    failed = list(more)
    try:
        score()
    except KeyError as error:
        failed.insert(0, error)
    raise ExceptionGroup("unhandled errors in a TaskGroup", failed)
"""


def test_the_only_member_is_what_was_raised() -> None:
    """Also of a group within a group; of several members none is preferred."""
    member = KeyError("x")
    one = ExceptionGroup("inner", [member])
    assert only_member(ExceptionGroup("outer", [one])) is member
    assert only_member(member) is member
    several = ExceptionGroup("outer", [member, TimeoutError()])
    assert only_member(several) is several


def reported(folder: Path, *more: Exception) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    order = RankOrder(2, 3, str(script), (), str(folder), "", "", {})
    try:
        runpy.run_path(str(script))["train"](*more)
    except ExceptionGroup as error:
        return rank_main._failure(order, error, error.__traceback__)
    raise AssertionError("the script raised nothing")


def test_a_mistake_in_a_task_is_reported_with_its_place(tmp_path: Path) -> None:
    """Python wraps it; where another task failed as well, the group is named, and the other explains it."""
    error = reported(tmp_path)
    assert (error["error_type"], error["user_frame"]) == ("KeyError", "train.py:3 in score")
    assert "cause" not in exits.evidence(1, error, "")
    both = reported(tmp_path, OSError(28, "No space left on device"))
    assert both["error_type"] == "ExceptionGroup"
    assert exits.evidence(1, both, "")["cause"] == "disk_space"


def test_notes_are_a_part_of_the_message(tmp_path: Path) -> None:
    """They name the file, or the part of the state, that the error came from."""
    error = ValueError("sample 9")
    error.add_note("raised by decode= for /data/a.jsonl, the 20 lines from byte 0 on")
    order = RankOrder(2, 3, "train.py", (), str(tmp_path), "", "", {})
    found = rank_main._failure(order, error, None)
    assert (found["error_type"], found["message"]) == ("ValueError", f"sample 9 ({error.__notes__[0]})")
