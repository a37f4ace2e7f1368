"""What all ranks decide together before a save."""

from __future__ import annotations

import torch
import xxhash
from torch import distributed as dist

# A group of Gloo's that the script destroys while a DDP module still has it goes down with that module; its threads are
# then joined under the interpreter's lock, which one of them may want to let go of the tensor of its last collective:
# the rank never ends (torch 2.13, in DDP's reducer; destroying the group by its Python object gives up the lock). The
# exchange below may be that last collective, so whoever makes it keeps the group. It ends with the process.
_kept: list[dist.ProcessGroup | None] = []


def agree(bad: bool, plan: bool, busy: bool, *, equal: str) -> tuple[bool, bool, bool]:
    """Each need, if any rank has it. A plan is also needed when ``equal`` is not the same on all ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return bad, plan, busy
    _kept[:] = [dist.group.WORLD]
    device = "cpu" if "cpu:" in dist.get_backend_config() else "cuda"
    name = xxhash.xxh3_64_intdigest(equal.encode()) >> 1
    needs = torch.tensor((bad, plan, busy, name, -name), dtype=torch.int64, device=device)
    dist.all_reduce(needs, op=dist.ReduceOp.MAX)
    *flags, largest, smallest = needs.tolist()
    return bool(flags[0]), bool(flags[1]) or largest != -smallest, bool(flags[2])
