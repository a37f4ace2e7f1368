"""A rank alone that makes some collectives with NCCL, then writes its recording: ``collectives N``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast.agent.ranks import flight_thread
from tests.gpu.saving import say


def main(number: int) -> None:
    """Make them; write what torch itself dumps when a line comes in."""
    flight_thread.start(0)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(1024, device="cuda")
    for _ in range(number):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    _noted(time.monotonic() + 20.0)
    say("done")
    sys.stdin.readline()
    path = Path(os.environ[flight_thread.ENV_FOLDER]) / "own.pickle"
    path.write_bytes(torch._C._distributed_c10d._dump_nccl_trace())
    say(str(path))
    sys.stdin.readline()


def _noted(deadline: float) -> None:
    """Return when the watchdog has noted that all are complete, which it does a moment later."""
    while time.monotonic() < deadline:
        entries = json.loads(torch._C._distributed_c10d._dump_nccl_trace_json()).get("entries", ())
        if entries and all(each["state"] == "completed" for each in entries):
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]))
