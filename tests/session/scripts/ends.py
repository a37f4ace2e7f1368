"""A job that ends many times: the group is destroyed while DDP still has it, right after a save was agreed upon, or in
a job that saves nothing."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.session.agreement import Group

TIMES = 60


def train(saves: bool) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    if saves:
        group = Group()
        group.open()
    else:
        holdfast.Session({})
    model(torch.ones(2, 4)).sum().backward()
    if saves:
        group.agree(False)
    dist.destroy_process_group()  # as most scripts do it: `model` is still there


for time in range(TIMES):
    store = dist.FileStore(f"{sys.argv[1]}/{time}", int(os.environ["WORLD_SIZE"]))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    train(sys.argv[2] == "saves")
