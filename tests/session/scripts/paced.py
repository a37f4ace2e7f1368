"""Two ranks that find that saves must be 2 and 9 calls apart, by what these cost them."""

import torch.distributed as dist

import holdfast
from holdfast.session.save_interval import SaveInterval
from tests.session.small import train, training

STEPS = 80

dist.init_process_group("gloo")
session, state = holdfast.Session(), training()
start = session.restore(state)
SaveInterval.calls = property(lambda _: 9 if dist.get_rank() else 2)  # type: ignore[assignment, method-assign]
for step in range(start + 1, STEPS + 1):
    train(state)
    session.step(step)
    session.checkpoint(state, last=step == STEPS)
    session.flush()
    dist.barrier()
dist.destroy_process_group()
