"""The trainer: has the servers' parameters in its checkpoints, and fills a server that starts again.

What it saves is what it pulled at that step, so parameters and step are restored together.
"""

import argparse
import time
from contextlib import suppress

import torch
import torch.distributed as dist
from common import SERVERS, WIDTH, loss, pull, push
from torch import nn

import holdfast

empty: set[int] = set()


def settle(parts: list[torch.Tensor | None], known: torch.Tensor, step: int) -> list[torch.Tensor]:
    """Fill servers that are empty with the newest values that were seen of them.

    A server may have taken them although its answer was lost: it counts as filled once it shows that it has values.
    """
    chunks = known.chunk(SERVERS)
    for index, part in enumerate(parts):
        if part is None:
            empty.add(index)
            push(index, values=chunks[index].clone())
        elif index in empty:
            empty.remove(index)
            print(f"server {index} filled: it has values at step {step}", flush=True)
    return [chunk if part is None else part for chunk, part in zip(chunks, parts, strict=True)]


def main(steps: int, step_seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session = holdfast.Session()
    model = nn.Linear(WIDTH, 1, bias=False)
    state = {"model": model}
    start = session.restore(state)
    leads = dist.get_rank() == 0
    known, inputs = model.weight.detach()[0].clone(), torch.randn(512, WIDTH)
    behind = start > 0  # servers that stayed are ahead of the restored step: back to it
    for step in range(start + 1, steps + 1):
        time.sleep(step_seconds)
        if leads:
            with suppress(OSError):  # a server is being replaced: the next step fills it
                parts = [None] * SERVERS if behind else pull()
                known, behind = torch.cat(settle(parts, known, step - 1)), False
        dist.broadcast(known, 0)
        with torch.no_grad():
            model.weight.copy_(known[None])
        session.step(step, loss=loss(known, inputs).item())
        session.checkpoint(state)
        if step % 20 == 0 and leads:
            print(f"step {step}: loss {loss(known, inputs):.4f}", flush=True)
    session.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    options = parser.parse_args()
    main(options.steps, options.step_seconds)
