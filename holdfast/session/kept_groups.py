"""Process groups that are kept until the process ends, because releasing them may keep it from ending."""

from __future__ import annotations

import ctypes

import torch.distributed as dist


def keep(group: object) -> None:
    """Never release a group.

    A Gloo group that the script destroys while a DDP module still has it is released with that module; its threads are
    then joined under the interpreter's lock, which one of them may need to release the tensor of its last collective:
    the rank never ends (torch 2.13, in DDP's reducer). And one that is released with an exchange under way waits for
    it, perhaps for a rank that is gone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def keep_the_scripts() -> None:
    """Never release the groups that the script has made so far."""
    if dist.is_available() and dist.is_initialized():
        for group in list(dist.distributed_c10d._world.pg_map):
            keep(group)
