"""The example in processes that may be kept. First argument: how it behaves once, in its third step (nothing: well)."""

import runpy
import sys
import time
from pathlib import Path

import torch

import holdfast
from holdfast.session import Session
from holdfast.session.keep import training_function

HOW, MINE = sys.argv[1], int(sys.argv[2])
sys.argv[1:] = sys.argv[3:]
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train_gpt.py"
main = runpy.run_path(str(EXAMPLE), run_name="example")["main"]
calls = []
training_function.CLOSE_S = 30.0  # a host that is busy with other tests may be long with a copy
if HOW == "alone":
    training_function.ALONE_S = 1.0


def report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


class Once(Session):
    """A Session whose rank does something else than training, once."""

    def step(self, step: int, loss: float | None = None, grad_norm: float | None = None) -> None:
        super().step(step, loss=loss, grad_norm=grad_norm)
        if len(calls) == 1 and step == 3 and torch.distributed.get_rank() == MINE:
            self.misbehave()

    def misbehave(self) -> None:
        report("misbehaves")
        if HOW == "sleeps":
            time.sleep(600)
        elif HOW == "computes":
            while True:
                pass
        elif HOW == "catches":
            while True:
                try:
                    time.sleep(600)
                except Exception:
                    continue
        elif HOW == "raises":
            raise ValueError("an error of its own")


def train() -> None:
    calls.append(1)
    report(f"call {len(calls)}")
    holdfast.Session = Once
    main()


holdfast.run(train)
