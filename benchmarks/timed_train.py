"""Run ``train_gpt.py`` beside it, unchanged, and write down when steps were complete.

Every launcher starts this file, so that steps are observed alike: each rank writes one line when it begins, rank 0
one more after each step, to the file named by ``BENCH_STEPS``. ``BENCH_SLOW`` (seconds) makes the first step, an
evaluation and a checkpoint take that long, to provoke false alarms.
"""

import json
import os
import runpy
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast.session import Session

EVALUATE_AT, CHECKPOINT_AT = 20, 40


class TimedSession(Session):
    """A Session that notes the time of each step."""

    def __init__(self) -> None:
        super().__init__()
        self._rank = int(os.environ.get("RANK", "0"))
        self._slow_s = float(os.environ.get("BENCH_SLOW", "0"))
        self._lines = os.open(os.environ["BENCH_STEPS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._note(0)

    def step(self, step: int, loss: Any = None, grad_norm: Any = None) -> None:
        """As the Session's, and a line from rank 0."""
        if self._slow_s:
            self._dawdle(step)
        super().step(step, loss, grad_norm)
        if self._rank == 0:
            self._note(step)

    def _dawdle(self, step: int) -> None:
        if step == 1:
            time.sleep(self._slow_s)
        elif step in (EVALUATE_AT, CHECKPOINT_AT):
            with self.phase("eval" if step == EVALUATE_AT else "checkpoint"):
                time.sleep(self._slow_s)

    def _note(self, step: int) -> None:
        line = {"rank": self._rank, "pid": os.getpid(), "step": step, "at": time.time()}
        os.write(self._lines, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    holdfast.Session = TimedSession  # type: ignore[assignment,misc]
    runpy.run_path(str(Path(__file__).with_name("train_gpt.py")), run_name="__main__")
