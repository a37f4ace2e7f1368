"""torchtitan's own ``Trainer``, its checkpoints off: ``titan_trainer.py plain|workers|fused OUT [STEP TO DIE IN]``.

Its Llama, made smaller, with FSDP2, its tokenizer, its loader of packed text and its loop. On CPUs: without flex
attention, which has no gradients there, and without the monitor of a GPU's memory.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.distributed.fsdp import FSDPModule

from holdfast import Session
from holdfast.integrations.torchtitan import HoldfastCheckpointer, states_of
from tests.integrations.scripts.frameworks import life

# What it would import and ask for a GPU: kernels for experts in triton, and which kind of device this is.
sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()
with patch("torch._utils._get_available_device_type", return_value="cpu"):
    from torchtitan.components import metrics
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
    from torchtitan.config.configs import DebugConfig, ParallelismConfig, TrainingConfig
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import make_gqa_config
    from torchtitan.models.llama3 import model_registry
    from torchtitan.trainer import Trainer

WORDS, DOCUMENTS = 500, 24
"""Few documents: all are read before a life of nine steps ends, and begun again in another order."""


def documents(_: str) -> Dataset:
    """Texts of 20 to 120 words."""
    numbers = random.Random(3)
    return Dataset.from_list(
        [
            {"text": " ".join(f"w{numbers.randrange(WORDS)}" for _ in range(numbers.randint(20, 120)))}
            for _ in range(DOCUMENTS)
        ]
    )


def write_tokenizer() -> str:
    """A folder with what torchtitan's tokenizer reads."""
    folder = life.OUT / f"tokenizer-{life.RANK}"
    folder.mkdir()
    words = {word: number for number, word in enumerate(["[UNK]", *(f"w{each}" for each in range(WORDS))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return str(folder)


def model() -> Any:
    """Its debug model, of two layers."""
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:
        old = layer.attention
        layer.attention = make_gqa_config(
            dim=old.dim,
            n_heads=old.n_heads,
            n_kv_heads=old.n_heads // 4,
            wqkv_param_init={"weight": partial(torch.nn.init.trunc_normal_, std=0.02)},
            wo_param_init=old.wo.param_init,
            inner_attention=ScaledDotProductAttention.Config(),
            rope=old.rope,
            fuse_qkv=life.KIND == "fused",
        )
    return spec


def config() -> Trainer.Config:
    """Much as its own for the debug model, with two groups of parameters and two micro-batches in a step."""
    spec = model()
    adamw = partial(ParamGroupConfig, optimizer_name="AdamW")
    groups = [
        adamw(pattern="norm", optimizer_kwargs={"lr": 1e-2, "weight_decay": 0.0}),
        adamw(pattern=".*", optimizer_kwargs={"lr": 3e-3, "weight_decay": 0.1}),
    ]
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path=write_tokenizer(),
        dump_folder=str(life.OUT),
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=spec.model.vocab_size)
        ),
        optimizer=OptimizersContainer.Config(param_groups=groups),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=3, decay_ratio=0.6, decay_type="cosine"),
        training=TrainingConfig(
            local_batch_size=2,
            global_batch_size=4 * int(os.environ["WORLD_SIZE"]),
            seq_len=64,
            steps=life.STEPS,
            disable_cuda_graphs=True,
        ),
        # Its default needs a newer torch's fully_shard.
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="words", num_workers=int(life.KIND == "workers")),
        metrics=metrics.MetricsProcessor.Config(log_freq=1),
        debug=DebugConfig(seed=7, enable_structured_logging=False),
    )


def stand_in() -> None:
    """Stand in for torchtitan's demands on a GPU, and for names that this torch does not have."""
    stats = metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)
    monitor = SimpleNamespace(device_name="cpu", get_peak_stats=lambda: stats, reset_peak_stats=lambda: None)
    metrics.build_device_memory_monitor = lambda: monitor
    torch.cpu.current_device = lambda: 0
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = dist.distributed_c10d._set_pg_timeout


def watch(trainer: Trainer, session: Session) -> None:
    """Note what each step reads, its loss and gradient norm; die after the optimizer's step and before the save."""
    train_step, log = trainer.train_step, trainer.metrics_processor.log
    numbers: list[str] = []

    def logged(step: int, loss: float, most: float, grad_norm: float, **others: Any) -> None:
        numbers[:] = [float(each).hex() for each in (loss, most, grad_norm)]
        trainer.checkpointer.report(loss=loss, grad_norm=grad_norm)
        log(step, loss, most, grad_norm, **others)

    def noted(batches: Iterator[Any]) -> None:
        read: list[Any] = []
        train_step(read.append(each) or each for each in batches)
        life.note(trainer.step, [read, numbers])
        if trainer.step == life.DIES_AT:
            life.die(session)

    trainer.metrics_processor.log, trainer.train_step = logged, noted


def main() -> None:
    stand_in()
    DATASETS["words"] = DatasetConfig(path="", loader=documents, sample_processor=itemgetter("text"))
    trainer = Trainer(config())
    for each in trainer.model_parts[0].modules():
        if isinstance(each, FSDPModule):
            each.set_force_sum_reduction_for_comms(True)  # the other way is not in gloo
    session = Session()
    trainer.checkpointer = HoldfastCheckpointer(trainer.checkpointer, session, states=states_of(trainer))
    watch(trainer, session)
    trainer.train()
    session.flush()
    (part,) = trainer.model_parts
    loader = trainer.dataloader.state_dict()
    life.finish(
        weights=dict(part.named_parameters()),
        buffers=dict(part.named_buffers()),
        optimizers=[life.optimizer_state(part, each) for each in trainer.optimizers],
        rates=trainer.lr_schedulers.get_metrics(),
        counts=trainer.state_dict(),
        loader={key: pickle.loads(each) if isinstance(each, bytes) else each for key, each in loader.items()},
    )
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
