"""Two ranks, of which one counts its steps from 2."""

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
session = holdfast.Session()
state = {"model": torch.nn.Linear(4, 4)}
session.restore(state)
for step in range(1, 5):
    session.step(step + dist.get_rank())
    session.checkpoint(state)
dist.destroy_process_group()
