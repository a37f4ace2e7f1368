"""Every parameter and all optimizer state say which step it is: ``growing.py STEPS MIB [OUT]``.

With OUT, memory is written there after every 50 saves: a line of JSON each.
"""

import ctypes
import gc
import json
import sys
from pathlib import Path

import torch

import holdfast

steps, mib = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
model = torch.nn.Module()
model.parts = torch.nn.ParameterList(torch.zeros(mib << 16) for _ in range(4))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
session = holdfast.Session()
state = {"model": model, "optimizer": optimizer}
start = session.restore(state)
assert all((part == start).all() for part in model.parts), "restored another step"
for step in range(start + 1, steps + 1):
    for part in model.parts:
        part.grad = torch.full_like(part, -1.0)
    optimizer.step()
    session.step(step)
    session.checkpoint(state)
    if len(sys.argv) > 3 and step % 50 == 0:
        session.flush()
        # What is in use, not what the allocator keeps for later: that differs by MiB from look to look.
        for part in model.parts:
            part.grad = None
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        numbers = {name: int(status[name].split()[0]) for name in ("RssAnon", "RssShmem", "Threads")}
        with open(sys.argv[3], "a") as out:
            out.write(json.dumps({"step": step, "saved": session.counts.saved, **numbers}) + "\n")
