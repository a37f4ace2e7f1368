"""A rank alone that makes some collectives with NCCL, then writes its recording: ``collectives N``."""

from __future__ import annotations

from holdfast.agent.ranks import flight_thread

flight_thread.start(0)  # before torch has threads, as in a rank

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from tests.gpu.saving import say  # noqa: E402


def main(number: int) -> None:
    """Make them; write what torch itself dumps when a line comes in."""
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
