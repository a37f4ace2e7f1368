"""A few weights, averaged over all ranks in each step; when each step began and ended is noted in a file.

All ranks are on one host in truth, so their clocks are one.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    args, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job, epoch = os.environ["HOLDFAST_JOB"], os.environ["HOLDFAST_EPOCH"]
    path = args.notes / f"{job}-e{epoch}-r{dist.get_rank()}"
    model = torch.nn.Linear(16, 16)
    session = holdfast.Session()
    state = {"model": model}
    start = session.restore(state)
    with path.open("a", buffering=1) as notes:
        for step in range(start + 1, args.steps + 1):
            notes.write(f"{step} {time.monotonic()}\n")
            with torch.no_grad():
                for weight in model.parameters():
                    dist.all_reduce(weight)
                    weight.div_(dist.get_world_size())
            time.sleep(args.step_seconds)
            session.step(step, loss=1.0)
            session.checkpoint(state)
            notes.write(f"{step} {time.monotonic()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
