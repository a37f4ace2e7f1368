"""FSDP2 over gloo: shards as DTensors. Writes each rank's final local weights to the folder given."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast

steps, out = int(sys.argv[1]), Path(sys.argv[2])
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(9, 33), nn.GELU(), nn.Dropout(0.2), nn.Linear(33, 5))
for layer in (model[0], model[3], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
torch.manual_seed(dist.get_rank())
session = holdfast.Session()
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
start = session.restore(state)
for step in range(start + 1, steps + 1):
    loss = model(torch.randn(16, 9)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    session.step(step, loss=loss.item())
    session.checkpoint(state)
weights = {name: each.to_local() for name, each in model.named_parameters()}
torch.save(weights, out / f"{dist.get_rank()}.pt")
dist.destroy_process_group()
