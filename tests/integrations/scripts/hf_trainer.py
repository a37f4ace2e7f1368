"""A tiny classifier with dropout under the Hugging Face Trainer: 2.5 epochs of 8 steps, shuffled.

``hf_trainer.py OUT FOLDER [SECONDS_MORE_PER_STEP [BATCH [DROPOUT]]]``
"""

import sys
import time
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from holdfast.integrations.transformers import HoldfastCallback

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
set_seed(7)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.Dropout(float(sys.argv[5]) if sys.argv[5:] else 0.3), nn.Linear(16, 2)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Slow(TrainerCallback):
    """Each step takes so many seconds longer."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(float(sys.argv[3]))


generator = torch.Generator().manual_seed(1)
data = [{"x": torch.randn(8, generator=generator), "labels": torch.tensor(i % 2)} for i in range(32)]
arguments = TrainingArguments(
    output_dir=sys.argv[2],
    max_steps=20,
    per_device_train_batch_size=int(sys.argv[4]) if sys.argv[4:] else 4,
    learning_rate=0.05,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    dataloader_pin_memory=False,
)
slow = [Slow()] if sys.argv[3:] else []
trainer = Trainer(Net(), arguments, train_dataset=data, callbacks=[HoldfastCallback(), *slow])
trainer.train()
assert trainer.state.global_step == 20, trainer.state.global_step
torch.save(trainer.model.state_dict(), sys.argv[1])
