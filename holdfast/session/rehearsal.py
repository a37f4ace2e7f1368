"""One small step, save and restore, so that a waiting process has done everything once before it is needed.

The first time costs several times the second: modules are imported late, caches are filled, and a forked process
copies each page that it touches. A recovery has no time for that; a spare process has.

The fork server loads this module: what the first step of any torch optimizer imports (``torch._dynamo``, seconds of a
processor) is loaded once for all ranks and spare processes of a machine.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from holdfast.session import rng
from holdfast.session.restore import restore
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.plan import fits, make_plan, plan_of
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter

importlib.import_module("torch._dynamo")  # by name: else type checkers read all of torch's compiler
WIDTH = 16


class _Model(nn.Module):
    """The usual parts of a transformer, small."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.norm = nn.Embedding(32, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 32))

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(self.token(tokens))).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.mlp(self.drop(attended))  # type: ignore[no-any-return]


def rehearse() -> None:
    """Train a step, save, restore. Random state is as before afterwards; no collective, no thread is left."""
    before = rng.capture()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-rehearsal-") as folder:
            _rehearse(Path(folder))
    finally:
        rng.apply(before)


def _rehearse(folder: Path) -> None:
    model = _Model()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(2, 8, dtype=torch.long, device="cpu")
    loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    state = {"model": model, "optimizer": optimizer}
    tree, key = StateTree(state), rng.key(0)
    items = tree.flat() | rng.items(0)
    paths = tree.paths | rng.paths(0)
    planned = make_plan(items, folder, 0, 0, private=(key, *tree.private), paths=paths)
    writer = ShardWriter(planned.layout, Owner("rehearsal", 0, 0, 1), folder)
    writer.prepare()
    contents = writer.collect(items)
    assert contents is not None
    save = writer.start(contents, 1)
    save.run()
    restore(state, save.path, 0, verified=True)
    layout = plan_of(save.path, folder, 0, 1)
    assert layout is not None
    fits(layout, items)
