"""Two ranks; at step 3 only rank 1's loss is not a number."""

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
session = holdfast.Session()
state = {"model": model}
start = session.restore(state)
for step in range(start + 1, 6):
    bad = step == 3 and dist.get_rank() == 1
    session.step(step, loss=float("nan") if bad else 1.0)
    session.checkpoint(state)
dist.destroy_process_group()
