"""Save each step of a training whose every call that waits for the GPU is an error: ``steady BACKEND``."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist

from tests.gpu.saving import agent_in_memory, device, say
from tests.gpu.trainings import Training, autocast_fused, foreach
from tests.session.small import seed, session_of

WARM, STEPS = 4, 10


def steady(training: Training) -> dict[str, int]:
    """Train; return how many saves were made where nothing might wait, and the outcomes."""
    seed(1)
    with agent_in_memory() as agent:
        session = session_of(agent)
        session.restore(training.state)
        before = 0
        for step in range(1, STEPS + 1):
            training.step(step)
            torch.cuda.set_sync_debug_mode("error" if step > WARM else "default")
            try:
                with session.phase("forward"):
                    pass
                session.step(step)
                session.checkpoint(training.state)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            if step == WARM:
                assert session.flush()
                before = session.counts.saved
        assert session.flush()
        counts = session.counts
        session.close(10)
        return {"saved": counts.saved - before, "failed": counts.failed, "torn": counts.torn}


def main(backend: str) -> None:
    """With a group of this backend, of one rank."""
    dist.init_process_group(
        backend,
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        device_id=device() if backend == "nccl" else None,
    )
    found = {each.__name__: steady(each(device())) for each in (foreach, autocast_fused)}
    say(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
