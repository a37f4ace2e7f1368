"""The model of ``train_gpt.py`` under torchft: one replica group, of one rank, of a fault-tolerant data parallel job.

Survivors go on without those that died; a group that starts again takes the weights of one that lives. A step counts
when it was committed.
"""

import json
import os
import runpy
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.ddp import PureDistributedDataParallel

STEP_S = float(os.environ["BENCH_STEP_S"])


def main() -> None:
    """Train for ever."""
    example = runpy.run_path(str(Path(__file__).with_name("train_gpt.py")), run_name="example")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, rank, ranks = (
        example["GPT"](2, 64, 64),
        int(os.environ["BENCH_RANK"]),
        int(os.environ["BENCH_RANKS"]),
    )
    lines = os.open(os.environ["BENCH_STEPS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(step: int, took_part: int) -> None:
        line = {"rank": rank, "pid": os.getpid(), "step": step, "at": time.time(), "share": took_part / ranks}
        os.write(lines, json.dumps(line).encode() + b"\n")

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def held() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=held,
        replica_id=f"group-{rank}",
        timeout=timedelta(seconds=10),
    )
    # Its C++ one recommended instead ends every survivor with an AssertionError under this torch when a group dies.
    parallel = PureDistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-3))
    note(0, ranks)
    while True:
        began = time.monotonic()
        tokens = torch.randint(0, 256, (8, 65))
        optimizer.zero_grad()
        loss = cross_entropy(parallel(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
        # Every survivor reports it: the one that is watched may be the one that died.
        note(manager.current_step(), manager.num_participants())


if __name__ == "__main__":
    main()
