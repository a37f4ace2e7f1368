"""A tiny classifier with dropout under Lightning's Trainer: 2.5 epochs of 8 batches, shuffled, validated."""

import logging
import os
import signal
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader

from holdfast.integrations.lightning import HoldfastCallback

warnings.filterwarnings("ignore", category=UserWarning)
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 2))

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self._loss(batch)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("val", self._loss(batch) + torch.rand(()) * 1e-3)  # draws, as a loader that shuffles would

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        stepwise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.97**step)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=0, threshold=10.0
        )
        return [optimizer], [
            {"scheduler": stepwise, "interval": "step"},
            {"scheduler": plateau, "interval": "epoch", "monitor": "val"},
        ]


class Before(Callback):
    """Calls ``act`` before the batch that comes after ``step`` steps, when their saves are complete."""

    def __init__(self, step: int, act: Callable[[], None], holdfast: HoldfastCallback) -> None:
        self.step, self.act, self.holdfast = step, act, holdfast

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        if trainer.global_step == self.step:
            self.holdfast.session.flush()
            self.act()


class Notes(Callback):
    """Keeps a state that stock torch does not read back."""

    def __init__(self) -> None:
        self.seen: deque[int] = deque(maxlen=3)
        self.words = Counter[str]()

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "words": self.words}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.words = state["seen"], state["words"]

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, number: int
    ) -> None:
        self.seen.append(trainer.global_step)
        self.words["batch"] += 1


def fit(
    holdfast: HoldfastCallback,
    folder: str,
    *others: Callback,
    loader: type[DataLoader[Any]] = DataLoader,
    accumulate: int = 1,
    **options: Any,
) -> Net:
    """Train and return the module."""
    seed_everything(7, verbose=False)
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(8, generator=generator), i % 2) for i in range(32)]
    module = Net()
    trainer = Trainer(
        default_root_dir=folder,
        max_steps=20 // accumulate,
        accumulate_grad_batches=accumulate,
        val_check_interval=4,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        deterministic=True,
        callbacks=[holdfast, *others],
    )
    trainer.fit(module, loader(data, batch_size=4, shuffle=True, **options), DataLoader(data, batch_size=16))
    assert trainer.global_step == 20 // accumulate, trainer.global_step
    return module


if __name__ == "__main__":
    out, folder, die_at = sys.argv[1:]
    torch.set_num_threads(1)
    callback = HoldfastCallback()
    death = Before(int(die_at), lambda: os.kill(os.getpid(), signal.SIGKILL), callback)
    torch.save(fit(callback, folder, death).state_dict(), out)
