"""Two ranks whose last step comes while a save of the other rank is under way."""

import time
from typing import Any

import torch.distributed as dist

import holdfast
from holdfast.storage.checkpoints.save.transfer import Transfer
from tests.session.small import train, training


def slow_on_rank_1() -> None:
    """Let that rank's copies take longer than the other's step."""
    whole = Transfer.run

    def run(self: Transfer, reached: Any) -> None:
        time.sleep(0.4 * dist.get_rank())
        whole(self, reached)

    Transfer.run = run  # type: ignore[method-assign]


def main() -> None:
    dist.init_process_group("gloo")
    session, state = holdfast.Session(), training()
    start = session.restore(state)
    slow_on_rank_1()
    for step in range(start + 1, 8):
        train(state)
        session.step(step)
        session.checkpoint(state, last=step == 7)


if __name__ == "__main__":
    main()
