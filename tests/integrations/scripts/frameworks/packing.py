"""A loader that packs documents of any length into rows of tokens: ``packing.py WORKERS OUT [STEP TO DIE IN]``.

What is left of a document lies in a tensor whose length changes from step to step, in the state of
``torchdata``'s ``StatefulDataLoader``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.integrations.scripts.frameworks import life

VOCABULARY, LENGTH = 32, 24


class Packed(IterableDataset[Tensor]):
    """Rows of tokens from documents of 1 to 60 tokens."""

    def __init__(self, rank: int) -> None:
        self.rank, self.documents = rank, 0
        self.rest = torch.empty(0, dtype=torch.int64)
        """Tokens read and not yet given out."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        seed = 1000 * self.rank + 100 * (worker.id if worker else 0)
        while True:
            while len(self.rest) < LENGTH:
                generator = torch.Generator().manual_seed(seed + self.documents)
                length = int(torch.randint(1, 60, (), generator=generator))
                document = torch.randint(VOCABULARY, (length,), generator=generator)
                self.rest = torch.cat([self.rest, document])
                self.documents += 1
            row, self.rest = self.rest[:LENGTH], self.rest[LENGTH:]
            yield row

    def state_dict(self) -> dict[str, Any]:
        return {"documents": self.documents, "rest": self.rest}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.documents, self.rest = saved["documents"], saved["rest"]


class Training:
    def __init__(self) -> None:
        torch.manual_seed(7)
        self.loader = StatefulDataLoader(Packed(life.RANK), batch_size=2, num_workers=int(life.KIND))
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.batches: Iterator[Tensor] | None = None

    def step(self) -> Tensor:
        if self.batches is None:  # not before the state is restored
            self.batches = iter(self.loader)
        tokens = next(self.batches)
        logits = self.model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return tokens


def main() -> None:
    training = Training()
    state = {"model": training.model, "optimizer": training.optimizer, "loader": training.loader}
    life.train(state, training.step)
    life.finish(
        weights=dict(training.model.state_dict()),
        optimizer=life.optimizer_state(training.model, training.optimizer),
        loader=training.loader.state_dict(),
    )


if __name__ == "__main__":  # workers import this file
    main()
