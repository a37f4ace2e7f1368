"""Two ranks, of which one has its copies done only after the other's next call; the last step is saved all the same."""

import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

import holdfast
from holdfast.storage.checkpoints.save.transfer import Transfer
from tests.session.small import train, training

LATE = (1, 3)
"""Steps whose copy on rank 1 waits for rank 0's call of the step after."""
STEPS = 7


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    session, state = holdfast.Session(), training()
    start = session.restore(state)
    step, whole = start, Transfer.run

    def run(self: Transfer, reached: Any) -> None:
        while dist.get_rank() and step in LATE and not (folder / str(step + 1)).exists():
            time.sleep(0.01)
        whole(self, reached)

    Transfer.run = run  # type: ignore[method-assign]
    for step in range(start + 1, STEPS + 1):
        train(state)
        session.step(step)
        session.checkpoint(state, last=step == STEPS)
        if not dist.get_rank():
            (folder / str(step)).touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
