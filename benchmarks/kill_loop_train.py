"""As :mod:`benchmarks.timed_train`, for launchers that keep no state: rank 0 saves with torch.save every 10 steps.

The newest one is loaded at each start, by every rank, from the folder of ``BENCH_STEPS``.
"""

import os
import runpy
from pathlib import Path
from typing import Any

import torch
from timed_train import TimedSession

import holdfast

EVERY = 10


class SavingSession(TimedSession):
    """A session as a careful user of a plain launcher writes it."""

    def __init__(self) -> None:
        super().__init__()
        self._path = Path(os.environ["BENCH_STEPS"]).with_name("checkpoint.pt")
        self._step = 0

    def restore(self, state: dict[str, Any], *_: Any, **__: Any) -> int:
        """The step of the newest checkpoint, whose state is loaded; 0 without one."""
        if not self._path.exists():
            return 0
        saved = torch.load(self._path, weights_only=True)
        for name, held in state.items():
            held.load_state_dict(saved[name])
        self._step = int(saved["step"])
        return self._step

    def step(self, step: int, loss: Any = None, grad_norm: Any = None) -> None:
        """As the timed one's."""
        super().step(step, loss, grad_norm)
        self._step = step

    def checkpoint(self, state: dict[str, Any], *_: Any, **__: Any) -> None:
        """Every 10 steps, whole or not at all."""
        if self._rank == 0 and self._step % EVERY == 0:
            fresh = self._path.with_suffix(".new")
            torch.save(
                {name: held.state_dict() for name, held in state.items()} | {"step": self._step}, fresh
            )
            os.replace(fresh, self._path)


if __name__ == "__main__":
    holdfast.Session = SavingSession  # type: ignore[assignment,misc]
    runpy.run_path(str(Path(__file__).with_name("train_gpt.py")), run_name="__main__")
