"""Two ranks with a batch norm and a buffer each: ``first_save.py STEPS [APART]``.

Each prints how often it waits for the other one on its main thread in the first saved step. APART: rank 1's buffer is
another's.
"""

import sys
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

import holdfast
from holdfast.session.agreement import Group

STEPS, APART = int(sys.argv[1]), len(sys.argv) > 2


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.register_buffer("seen", torch.full((4,), float(APART and dist.get_rank())))
    state = {"model": model}
    session = holdfast.Session()
    step, waits = session.restore(state), [0]
    for name in ("agree", "same"):
        asked = getattr(Group, name)

        def counted(self: Group, *given: Any, asked: Any = asked, **options: Any) -> Any:
            waits[0] += 1
            return asked(self, *given, **options)

        setattr(Group, name, counted)
    first: list[int] = []
    while step < STEPS:
        step += 1
        session.step(step)
        session.checkpoint(state)
        first = first or [waits[0]]
        session.flush()
    sys.stdout.write(f"rank {dist.get_rank()}: waits {first[0]}, common {session.counts.common}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
