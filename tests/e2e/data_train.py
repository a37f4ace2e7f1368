"""A job that reads files by holdfast.data until they are used up, and notes every sample that it trains on."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast import data

BATCH = 12


def option(name: str) -> str:
    return sys.argv[sys.argv.index(f"--{name}") + 1]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session = holdfast.Session()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    folder = Path(option("data"))
    source = data.mix(
        {
            "web": data.folder(folder / "web", window=2, shuffle=50),
            "code": data.folder(folder / "code", shuffle=50),
        },
        weights={"web": 0.7, "code": 0.3},
    )
    dataset = data.Dataset(source, BATCH, seed=7, lanes=6)
    state = {"model": model, "optimizer": optimizer, "data": dataset}
    step = session.restore(state)
    hurry = Path(option("notes")) / "hurry"
    notes = hurry.with_name(f"e{os.environ['HOLDFAST_EPOCH']}-r{dist.get_rank()}.txt")
    with notes.open("a", buffering=1) as noted:
        for rows in dataset:
            step += 1
            if not hurry.exists():
                time.sleep(0.2 if step < 60 else 1.0)  # as Paced does
            ids = [row["id"] for row in rows]
            optimizer.zero_grad()
            loss = (model(torch.tensor(ids, dtype=torch.float32).reshape(-1, 1) / 1000) - 1).square().mean()
            loss.backward()
            optimizer.step()
            session.step(step, loss=loss.item())
            noted.write(f"{step} {' '.join(map(str, ids))}\n")
            session.checkpoint(state)
    dist.barrier()


if __name__ == "__main__":
    main()
