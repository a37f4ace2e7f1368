"""Process groups that are kept until the process ends, so that it does end."""

from __future__ import annotations

import ctypes

import torch.distributed as dist


def keep(group: object) -> None:
    """Never let go of a group.

    One of Gloo's that the script destroys while a DDP module still has it goes down with that module; its threads are
    then joined under the interpreter's lock, which one of them may want to let go of the tensor of its last collective:
    the rank never ends (torch 2.13, in DDP's reducer). And one that goes down with an exchange under way waits for
    it, perhaps for a rank that is gone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def keep_the_scripts() -> None:
    """Never let go of the groups that the script has made so far."""
    if dist.is_available() and dist.is_initialized():
        for group in list(dist.distributed_c10d._world.pg_map):
            keep(group)
