"""Train a small byte-level GPT on the source of Python's own standard library, surviving faults.

    torchrun --nproc-per-node 2 examples/train_gpt.py --steps 20       # plain: Session does nothing
    holdfast submit examples/train_gpt.yaml                            # recovered by playbooks

The lines marked (holdfast) are all that Holdfast needs. The run is deterministic: whatever happens to it
on the way, the final weights are the same, bit for bit.
"""

import argparse
import hashlib
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import holdfast  # (holdfast)


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each behind a LayerNorm and with a residual."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(attended))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class Batches:
    """The corpus in a seeded random order. Its whole state is how many blocks all ranks have consumed."""

    def __init__(self, text: bytes, context: int, batch: int, seed: int) -> None:
        self.blocks = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, context + 1, context)
        self.batch, self.seed, self.consumed = batch, seed, 0
        self.rank, self.world, self.shuffled = dist.get_rank(), dist.get_world_size(), (-1, torch.empty(0))

    def next(self) -> tuple[Tensor, Tensor]:
        together = self.batch * self.world
        turn, at = divmod(self.consumed, len(self.blocks) // together * together)
        if self.shuffled[0] != turn:
            order = torch.Generator().manual_seed(self.seed + turn)
            self.shuffled = (turn, torch.randperm(len(self.blocks), generator=order))
        mine = self.shuffled[1][at + self.rank * self.batch :][: self.batch]
        self.consumed += together
        block = self.blocks[mine].long()
        return block[:, :-1], block[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.consumed = state["consumed"]


def corpus() -> bytes:
    """The text of the standard library's top-level modules, about 4 MB."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return b"".join(path.read_bytes() for path in paths)


def digest(model: nn.Module) -> str:
    """sha256 over the names and bytes of all weights."""
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"steps": 100, "layers": 2, "width": 64, "batch": 8, "context": 64, "seed": 1}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let a step take at least this long")
    parser.add_argument("--out", type=Path, help="rank 0 writes the final weights and their digest here")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    torch.manual_seed(args.seed)
    # Unless it looks for unused parameters, DDP regroups the gradients after its first step. Sums are then
    # taken in another order, and a restart (which has a first step too) would differ in the last bits.
    model = DistributedDataParallel(GPT(args.layers, args.width, args.context), find_unused_parameters=True)
    torch.manual_seed(args.seed * 1000 + dist.get_rank())  # dropout differs from rank to rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = Batches(corpus(), args.context, args.batch, args.seed)

    session = holdfast.Session()  # (holdfast)
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    start = session.restore(state)  # (holdfast)
    for step in range(start + 1, args.steps + 1):
        began = time.monotonic()
        tokens, targets = batches.next()
        with session.phase("forward"):  # (holdfast) optional: times by part of the step
            loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        with session.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}, gradient norm {norm:.3f}", flush=True)
        session.step(step, loss=loss.item(), grad_norm=norm)  # (holdfast)
        session.checkpoint(state, last=step == args.steps)  # (holdfast)

    if dist.get_rank() == 0:
        weights = {"step": args.steps, "digest": digest(model.module), "model": model.module.state_dict()}
        print(f"done: {args.steps} steps, weights {weights['digest']}", flush=True)
        if args.out:
            torch.save(weights, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
