"""Sums some KiB over all ranks in each step, so that the step's pace follows the slowest link."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import holdfast

KIB = 96


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(16, 16)
    session = holdfast.Session()
    state = {"model": model}
    start = session.restore(state)
    given = torch.ones(KIB * 256)
    for step in range(start + 1, 1_000_000):
        dist.all_reduce(given)
        given.fill_(1)
        time.sleep(0.05)
        session.step(step, loss=1.0)
        session.checkpoint(state)


if __name__ == "__main__":
    main()
