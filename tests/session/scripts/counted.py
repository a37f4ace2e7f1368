"""Ranks count the collectives that their main threads begin in ``checkpoint``: at first, later, and at a new plan."""

import json
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast

counted = []


def counting(name, of=dist):
    whole = getattr(of, name)

    def call(*args, **kwargs):
        if threading.current_thread() is threading.main_thread():
            counted.append(name)
        return whole(*args, **kwargs)

    setattr(of, name, call)
    if of is dist and hasattr(dist.distributed_c10d, name):
        setattr(dist.distributed_c10d, name, call)


for each in (
    *("all_reduce", "all_gather", "all_gather_object", "barrier", "broadcast", "broadcast_object_list"),
    *("gather_object", "scatter_object_list", "reduce_scatter", "monitored_barrier", "gather", "scatter"),
):
    counting(each)
# What a group does that torch's functions do not know of.
for each in ("allreduce", "allgather", "barrier", "broadcast"):
    counting(each, dist.distributed_c10d.ProcessGroupGloo)


def taken():
    found = len(counted)
    counted.clear()
    return found


dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
session = holdfast.Session()
state = {"model": model}
session.restore(state)
taken()
counts = {}
for step in range(1, 41):
    if step == 21:
        session.flush()
        counts |= {"steady": taken(), "saved": session.counts.saved, "common": session.counts.common}
        model.register_buffer("more", torch.ones(3))
    session.step(step, loss=1.0)
    session.checkpoint(state)
    time.sleep(0.01)
    if step == 1:
        counts["first"] = taken()
session.flush()
counts |= {"new_plan": taken(), "after": session.counts.common}
Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(counts))
dist.destroy_process_group()
