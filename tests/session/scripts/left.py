"""Three ranks, one of which is killed; the others go on without a collective of their own."""

import os
import signal
import time

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
session = holdfast.Session()
state = {"model": torch.nn.Linear(4, 4)}
session.restore(state)
step = 0
deadline = time.monotonic() + 90
while session.counts.failed == 0 and time.monotonic() < deadline:
    step += 1
    if step == 4 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    session.step(step)
    session.checkpoint(state)
    time.sleep(0.01)
