"""Two ranks, of which one has its copies done only after the other's next call; the last step is saved all the same."""

import sys
import time
from pathlib import Path

import torch.distributed as dist

import holdfast
from holdfast.storage.checkpoints.save.writer import Save
from tests.session.small import train, training

LATE = (1, 3)
"""Steps whose copy on rank 1 waits for rank 0's call of the step after."""
STEPS = 7


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    session, state = holdfast.Session(), training()
    start = session.restore(state)
    whole = Save.run

    def run(self: Save) -> bool:
        while dist.get_rank() and self.step in LATE and not (folder / str(self.step + 1)).exists():
            time.sleep(0.01)
        return whole(self)

    Save.run = run  # type: ignore[method-assign]
    for step in range(start + 1, STEPS + 1):
        train(state)
        session.step(step)
        session.checkpoint(state, last=step == STEPS)
        if not dist.get_rank():
            (folder / str(step)).touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
