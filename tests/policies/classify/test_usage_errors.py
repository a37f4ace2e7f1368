"""Exits of scripts that refuse their command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import ScriptRefusedError
from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.classify import usage_errors
from holdfast.session import planning

ARGPARSE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: argument --lr: invalid float value: 'fast'\n"
CLICK = "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --warmup\n"
RICH = "Usage: train.py [OPTIONS]\n╭─ Error ─────╮\n│ No such option: --warmup      │\n╰─────╯\n"


def ended(rank: int, log: str = "", **evidence: object) -> Alert:
    return Alert(
        kind=AlertKind.RANK_EXIT,
        job="gpt",
        machine=f"m{rank}",
        rank=rank,
        epoch=1,
        at=1.0,
        evidence={"exit_code": 2, "log_tail": log} | evidence,
    )


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (ARGPARSE, "argument --lr: invalid float value: 'fast'"),
        (CLICK, "No such option: --warmup"),
        (RICH, "No such option: --warmup"),
    ],
)
def test_the_message_is_found(log: str, text: str) -> None:
    """Of argparse, click and typer: a person reads it, not the whole log."""
    assert text in usage_errors.message_of(ended(0, f"step 3 loss 1.0\n{log}"))
    assert usage_errors.find([ended(0, log)], ranks=4)


def test_what_argparse_itself_writes_is_found(tmp_path: Path) -> None:
    """The present Python's words, not a copy of them."""
    script = tmp_path / "train.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = subprocess.run(
        [sys.executable, str(script), "--warmup", "10"], capture_output=True, text=True, check=False
    )
    assert done.returncode == usage_errors.STATUS
    assert "--warmup 10" in usage_errors.message_of(ended(0, done.stderr))


def test_a_status_with_another_cause_is_no_refusal() -> None:
    """Programs that cannot read a file end with the same one."""
    assert not usage_errors.find([ended(rank, cause="filesystem") for rank in (0, 1)], ranks=2)


def test_without_a_word_every_rank_must_have_ended_so() -> None:
    """One rank's status 2 is no evidence."""
    both = [ended(0), ended(1)]
    assert usage_errors.find(both, ranks=2) == both
    assert not usage_errors.find(both, ranks=4)
    assert not usage_errors.find([ended(0)], ranks=1)


@pytest.mark.parametrize("other", [{"exit_code": 1}, {"signal": "SIGSEGV"}, {"error_type": "ValueError"}])
def test_another_root_explains_it_better(other: dict[str, object]) -> None:
    """A rank that was killed or raised is no refused command line, nor is what its peers made of it."""
    assert not usage_errors.find([ended(0, ARGPARSE), ended(1, "", **other)], ranks=2)


def test_an_error_line_without_a_usage_line_is_no_refusal() -> None:
    """Any program may write ``x: error: y``."""
    assert not usage_errors.find([ended(0, "train.py: error: no space left\n")], ranks=4)


def refused(rank: int, message: str, **evidence: object) -> Alert:
    return ended(rank, exit_code=1, error_type="ScriptRefusedError", message=message, **evidence)


def test_the_reason_of_a_refusal_is_that_of_the_rank_that_met_it() -> None:
    """The others only heard that another rank's state cannot be saved."""
    echo = refused(0, f"step 1: {planning.ON_ANOTHER_RANK}; see the log of that rank")
    assert (
        usage_errors.refusal([echo, refused(1, "state 'extra.a': a lambda")]) == "state 'extra.a': a lambda"
    )
    assert (
        usage_errors.refusal([echo])
        == "step 1: the state cannot be saved on another rank; see the log of that rank"
    )


@pytest.mark.parametrize(
    "other", [{"error_type": "RuntimeError"}, {"signal": "SIGSEGV"}, {"error_type": "CheckpointError"}]
)
def test_a_refusal_beside_another_root_explains_nothing(other: dict[str, object]) -> None:
    """Shared memory that is full, or a rank that crashed, may be over at the next start."""
    assert not usage_errors.refusal([refused(0, "state 'a': no"), ended(1, exit_code=1, **other)])
    assert not usage_errors.refusal([])


def test_it_has_the_exceptions_name() -> None:
    """The gateway knows exceptions by their names."""
    assert ScriptRefusedError.__name__ == usage_errors.BY_SESSION
