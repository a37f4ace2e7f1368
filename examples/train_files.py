"""Train on files: hours of two sources, mixed, each sample once, whatever is killed and however the job is resized.

Plain: ``torchrun --nproc-per-node 2 train_files.py --data /data``; with Holdfast: ``holdfast submit train_files.yaml``.
``/data/web`` and ``/data/code`` hold JSON lines with a number ``x`` and a number ``y`` to learn, in paths such as
``dt=2026-11-24/hour=05/part.jsonl``.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast import data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, of all ranks together")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    session = holdfast.Session()
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sources = {name: data.folder(f"{args.data}/{name}", window=24) for name in ("web", "code")}
    dataset = data.Dataset(
        data.mix(data.align(sources), weights={"web": 0.7, "code": 0.3}), args.batch, seed=1
    )
    state = {"model": model, "optimizer": optimizer, "data": dataset}
    step = session.restore(state)
    for rows in dataset:
        step += 1
        x, y = (torch.tensor([float(row[name]) for row in rows]).reshape(-1, 1) for name in ("x", "y"))
        optimizer.zero_grad()
        # A rank that has no sample of the last, short step takes part in it all the same.
        loss = (model(x) - y).square().sum() / max(1, len(rows))
        loss.backward()
        optimizer.step()
        session.step(step, loss=loss.item())
        session.checkpoint(state)
    if dist.get_rank() == 0:
        print(f"{step} steps, {dataset.taken} samples")
    session.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
