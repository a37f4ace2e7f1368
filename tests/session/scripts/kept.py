"""Ranks whose every number encodes its step, to be killed: ``kept.py MIB``. Each rank's own numbers differ."""

import sys

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
torch.set_num_threads(1)
numbers = int(float(sys.argv[1]) * (1 << 18))


class Own:
    """A part that is each rank's own."""

    def __init__(self) -> None:
        self.weight = torch.zeros(numbers)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {f"weight{dist.get_rank()}": self.weight}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.weight.copy_(state[f"weight{dist.get_rank()}"])


own, session = Own(), holdfast.Session()
state = {"own": own}
step = session.restore(state)
assert (own.weight == 10 * step).all(), f"restored another step than {step}: {own.weight}"
while True:
    step += 1
    dist.all_reduce(torch.zeros(1))
    own.weight += 10.0
    session.step(step)
    session.checkpoint(state)
