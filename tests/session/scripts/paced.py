"""Two ranks whose steps take 10 ms, and saves 20 ms, on one of them 50 ms; `max_overhead` says how often they save."""

import time

import torch.distributed as dist

import holdfast
from holdfast.storage.checkpoints.save.writer import Save
from tests.session.small import train, training

STEPS = 80

dist.init_process_group("gloo")
session, state = holdfast.Session(), training()
start = session.restore(state)
whole = Save.run


def run(self: Save) -> bool:
    """Hold the next step up for as long as a large state would."""
    time.sleep(0.05 if dist.get_rank() else 0.02)
    return whole(self)


Save.run = run  # type: ignore[method-assign]
for step in range(start + 1, STEPS + 1):
    train(state)
    time.sleep(0.01)
    session.step(step)
    session.checkpoint(state, last=step == STEPS)
    session.flush()
    dist.barrier()
dist.destroy_process_group()
