"""Ranks that share a GPU, or one alone, in processes that may be kept: ``kept.py BACKEND STEPS PAUSE_S``.

Reports for each call of its training function what became of the context and of a tensor made outside of it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist

import holdfast
from tests.gpu.saving import device
from tests.gpu.trainings import Transformer, digests, loss_of, tokens_of
from tests.session.small import seed

BACKEND, STEPS, PAUSE_S = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
GPU = device()
calls: list[int] = []
held: list[torch.Tensor] = []


def log(line: str) -> None:
    """Write a line into the rank's log."""
    sys.stderr.write(f"rank {os.environ['RANK']} pid {os.getpid()}: {line}\n")
    sys.stderr.flush()


def train() -> None:
    """Train from what the agent chose to the last step."""
    calls.append(1)
    if not held:
        held.append(torch.arange(1 << 20, device=GPU))
    whole = bool((held[0] == torch.arange(1 << 20, device=GPU)).all())
    log(f"call {len(calls)} held {whole} at {held[0].data_ptr()}")
    bound = torch.device("cuda", 0) if BACKEND == "nccl" else None
    dist.init_process_group(BACKEND, device_id=bound)
    rank, world = dist.get_rank(), dist.get_world_size()
    seed(1)
    model = Transformer().to(GPU)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    seed(10 + rank)
    session, state = holdfast.Session(), {"model": model, "optimizer": optimizer}
    for step in range(session.restore(state) + 1, STEPS + 1):
        optimizer.zero_grad()
        loss_of(model, tokens_of(world * step + rank, GPU)).backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        session.step(step)
        session.checkpoint(state, last=step == STEPS)
        time.sleep(PAUSE_S)
    weights = repr(sorted(digests(state).items()))
    log(f"weights {hashlib.sha256(weights.encode()).hexdigest()}")


torch.use_deterministic_algorithms(True)
warnings.simplefilter("ignore")
holdfast.run(train)
