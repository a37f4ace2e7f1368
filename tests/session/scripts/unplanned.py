"""Two ranks, one of which fails once while a plan is made: ``unplanned.py STEPS RANK MODULE NAME PLAN``.

That rank raises at the first call of the function from the PLAN-th plan on. The state needs a second plan at step 3.
"""

import importlib
import os
import sys
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

import holdfast
from holdfast.errors import CheckpointError
from holdfast.session.planning import Planner

STEPS, RANK, MODULE, NAME, PLAN = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5])


def fail_once(planner: Any) -> None:
    """Have the function raise instead of being called, once."""
    module = importlib.import_module(MODULE)
    called = getattr(module, NAME)

    def instead(*args: Any, **options: Any) -> Any:
        if planner() < PLAN:
            return called(*args, **options)
        setattr(module, NAME, called)
        raise MemoryError("injected")

    setattr(module, NAME, instead)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Linear(3, 3)
    model.register_buffer("seen", torch.zeros(4))
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    session = holdfast.Session()
    step = session.restore(state)
    plans = [0]
    readable = Planner._readable

    def counted(self: Planner, given: Any) -> Any:
        plans[0] += 1
        return readable(self, given)

    Planner._readable = counted  # type: ignore[method-assign]
    if dist.get_rank() == RANK:
        fail_once(lambda: plans[0])
    while step < STEPS:
        step += 1
        if step == 3:
            model.seen = torch.zeros(5)
        with torch.no_grad():
            model.seen += 1
        session.step(step)
        try:
            session.checkpoint(state)
        except CheckpointError as error:
            sys.stdout.write(f"rank {dist.get_rank()} refused: {error}\n")
            os._exit(3)
        session.flush()
    counts = session.counts
    sys.stdout.write(f"rank {dist.get_rank()}: failed {counts.failed}, common {counts.common}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
