"""Text that a launcher, a collector or a logger puts around the lines of a log changes no verdict on a rank's end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.corpus.items import Kind, load
from tests.corpus.judge import changed

START = "Traceback (most recent call last):"
ENDS = tuple(
    item
    for item in load()
    if item.kind is Kind.EXIT and item.text.startswith((START, f"step 1200 loss 2.31\n{START}"))
)
"""Tracebacks as the interpreter prints them."""


def _each(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix}{line}" for line in text.splitlines(keepends=True))


def _json_line(text: str) -> str:
    before, _, raised = text.partition(START)
    fields = {"asctime": "2025-03-04 10:11:13", "levelname": "ERROR", "message": "training failed"}
    return f"{before}{json.dumps({**fields, 'exc_info': START + raised.rstrip()})}\n"


def _docker(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(f"{json.dumps({'log': line, 'stream': 'stderr', 'time': 'x'})}\n" for line in lines)


def _cri(text: str) -> str:
    """Lines as containerd keeps them; those that are long come in parts."""
    stamp = "2025-03-04T10:11:13.123456789Z stderr"
    return "".join(
        "".join(f"{stamp} P {part}\n" for part in (line[:20], line[20:30])) + f"{stamp} F {line[30:]}\n"
        if len(line) > 40
        else f"{stamp} F {line}\n"
        for line in text.splitlines()
    )


ENVELOPES: dict[str, Callable[[str], str]] = {
    "srun --label": _each("3: "),
    "torchrun and torch": _each("[default0]:[rank12]:"),
    "kubectl": _each("[pod/gpt-worker-3/pytorch] 2025-03-04T10:11:13.223457001Z "),
    "time stamps": _each("2025/03/04 10:11:13 "),
    "ray": _each("\x1b[36m(WorkerDict pid=14390, ip=10.0.0.3)\x1b[0m "),
    "vllm": _each("(EngineCore_4 pid=2095686) ERROR 04-17 23:05:06 [core.py:390] "),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "json": _json_line,
    "docker": _docker,
    "cri": _cri,
}


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_what_is_around_the_lines_changes_no_verdict(envelope: str, tmp_path: Path) -> None:
    """Class, cascade, and whether it counts against the machine."""
    assert changed(ENDS, ENVELOPES[envelope], tmp_path) == {}


def test_there_are_ends_to_try() -> None:
    """The control: of several classes, and some that blame the job's code."""
    assert len(ENDS) > 40
    assert len({item.expect for item in ENDS}) > 4
