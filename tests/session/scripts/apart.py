"""Two ranks that share no collective in their steps, one of them five times as slow."""

import time

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
session = holdfast.Session()
state = {"model": model}
session.restore(state)
# As long as it takes: while the slow one stands still, on a busy host, the fast one does many.
for step in range(1, 60_001):
    time.sleep(0.01 if dist.get_rank() else 0.002)
    session.step(step, loss=1.0)
    session.checkpoint(state)
    if session.counts.common >= 3:
        break
session.flush()
dist.destroy_process_group()
