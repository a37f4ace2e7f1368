"""Train a small model with DDP over gloo, on a GPU that all ranks may share or on the processor; with faults on order.

Deterministic: whatever happens on the way, the final weights are the same, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import holdfast

WORDS, WIDTH, BATCH = 512, 256, 16
BEYOND = (
    'extern "C" __global__ void beyond(float* given, int far) '
    "{ given[((long long) far << 20) + threadIdx.x] = 1.0f; }"
)
SPIN = 'extern "C" __global__ void spin(int* stop) { while (*(volatile int*) stop == 0) {} }'


class Model(nn.Module):
    """Predicts a word from the one before it, with dropout that differs from rank to rank."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.words(given)))
        return found


class Batches:
    """Seeded words; its state is how many batches were read."""

    def __init__(self, rank: int) -> None:
        self.rank, self.read = rank, 0

    def next(self) -> Tensor:
        self.read += 1
        made = torch.Generator().manual_seed(1000 * self.read + self.rank)
        return torch.randint(0, WORDS, (BATCH, 33), generator=made)

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def break_itself(device: torch.device) -> None:
    """Write past an allocation, as a kernel with a wrong index does."""
    if device.type != "cuda":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    kernel = torch.cuda._compile_kernel(BEYOND, "beyond")
    given = torch.zeros(32, device=device)
    kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[given, 1 << 20])
    given.sum().item()


def spin(device: torch.device) -> None:
    """Never come back from a kernel, as one that waits for what was never sent."""
    while device.type != "cuda":
        pass
    kernel = torch.cuda._compile_kernel(SPIN, "spin")
    kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.zeros(1, dtype=torch.int32, device=device)])
    torch.cuda.synchronize()


def digest(model: nn.Module) -> str:
    """sha256 over the names and bytes of all weights."""
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--folder", type=Path, help="where `hurry` lets steps be short, and `break-1` breaks rank 1"
    )
    args, _ = parser.parse_known_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    device = torch.device(args.device)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(Model().to(device), find_unused_parameters=True)
    torch.manual_seed(1000 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = Batches(rank)

    session = holdfast.Session()
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    for step in range(session.restore(state) + 1, args.steps + 1):
        words = batches.next().to(device)
        with session.phase("forward"):
            loss = cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        with session.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        for name, fault in (("break", break_itself), ("spin", spin)):
            order = args.folder / f"{name}-{rank}"
            if order.exists():
                order.unlink()
                fault(device)
        if not (args.folder / "hurry").exists():
            time.sleep(0.1 if step < args.steps / 2 else 1.0)
        session.step(step, loss=loss.item(), grad_norm=norm)
        session.checkpoint(state, last=step == args.steps)
    if rank == 0:
        torch.save({"digest": digest(model.module), "device": str(device)}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
