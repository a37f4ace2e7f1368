"""A job whose number of ranks changes, and which notes every sample that it trains on.

Double precision and a constant global batch: at any number of ranks the same weights, but for the order of sums.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

BATCH, WIDTH = 12, 8


def sample(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values for the same number, everywhere."""
    made = torch.Generator().manual_seed(number)
    values = torch.randn(WIDTH, generator=made, dtype=torch.float64)
    return values, values.sum().sin().reshape(1)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    return torch.nn.Sequential(*layers).double()


def pace(notes: Path, share: float) -> None:
    """Take so long that there is time for all that a test does, and no time once the file ``hurry`` is there."""
    if not (notes / "hurry").exists():
        time.sleep(0.1 if share < 0.5 else 1.0)


def main(steps: int, notes: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session = holdfast.Session()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer}
    start = session.restore(state)
    epoch, rank = os.environ["HOLDFAST_EPOCH"], dist.get_rank()
    with (notes / f"e{epoch}-r{rank}.txt").open("a", buffering=1) as noted:
        for step in range(start + 1, steps + 1):
            pace(notes, step / steps)
            share = session.share(step, BATCH)
            optimizer.zero_grad()
            parts = list(share.split(2))
            for part in parts:
                inputs, wanted = map(torch.stack, zip(*map(sample, part), strict=True))
                model.require_backward_grad_sync = part is parts[-1]
                loss = (model(inputs) - wanted).square().mean() * share.weight(len(part))
                loss.backward()
            optimizer.step()
            session.step(step, loss=loss.item())
            noted.write(f"{step} {' '.join(map(str, share.samples))}\n")
            session.checkpoint(state)
    if rank == 0:
        session.wait()
        torch.save(model.module.state_dict(), notes / "weights.pt")
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--steps") + 1]), Path(sys.argv[sys.argv.index("--notes") + 1]))
