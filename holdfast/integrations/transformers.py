"""Hugging Face ``Trainer``: add :class:`HoldfastCallback`, change nothing else.

::

    trainer = Trainer(model, args, train_dataset=data, callbacks=[HoldfastCallback()])
    trainer.train()

Model, optimizer, scheduler, random state and the trainer's progress are saved after every step and restored before the
first. Batches that were done before are passed over. Under plain ``torchrun`` the callback does nothing. At another
number of ranks it goes on where a step has as many samples as before (set the batch size or the accumulation); else the
restore is refused.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from holdfast.errors import CheckpointError
from holdfast.session import Session, rng
from holdfast.session.phase import Phase

_FIELDS = ("global_step", "total_flos", "num_input_tokens_seen")


class _Progress:
    """Where the trainer is, as a ``Stateful``. It counts steps, of as many samples each as before."""

    def __init__(self, state: TrainerState, args: TrainingArguments) -> None:
        self._state = state
        self._batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._factors = (
            f"{args.world_size} processes x per_device_train_batch_size = {args.train_batch_size} x "
            f"gradient_accumulation_steps = {args.gradient_accumulation_steps}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self._state, name) for name in _FIELDS} | {"samples_per_step": self._batch}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take the counts.

        Raises:
            CheckpointError: a step has another number of samples now.
        """
        batch = saved.get("samples_per_step", self._batch)
        if batch != self._batch:
            raise CheckpointError(
                f"state 'progress': the Trainer's steps were of {batch} samples each, and are of {self._batch} now "
                f"({self._factors}): it counts in steps, and would skip samples or repeat them. Set the two arguments "
                f"so that the product is {batch}"
            )
        for name in _FIELDS:
            setattr(self._state, name, saved[name])


class HoldfastCallback(TrainerCallback):
    """Reports steps, saves after each, and restores before the first."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session or Session()
        self._tree: dict[str, Any] = {}
        self._loss: float | None = None
        self._epoch, self._skip = -1, 0
        self._random: dict[str, Any] | None = None
        self._evaluation: Phase | None = None
        self._stepped = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore what the restore plan chose; the trainer counts on from there."""
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._tree = {
            "model": model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model,
            "optimizer": getattr(optimizer, "optimizer", optimizer),
            "scheduler": getattr(kwargs["lr_scheduler"], "scheduler", kwargs["lr_scheduler"]),
            "progress": _Progress(state, args),
        }
        if not self._session.restore(self._tree):
            return
        loader = kwargs["train_dataloader"]
        per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
        epochs, done = divmod(state.global_step, per_epoch)
        self._epoch = epochs - 1
        self._skip = done * args.gradient_accumulation_steps
        self._random = rng.capture() if done else None
        set_epoch = loader.set_epoch
        # The trainer counts its epochs from 0 after a restart; the order of the data goes by the job's own.
        loader.set_epoch = lambda _: set_epoch(self._epoch)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass over the batches of a broken epoch that were done before."""
        self._epoch += 1
        kwargs["train_dataloader"].skip_batches, self._skip = self._skip, 0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the random state: beginning the epoch again has drawn from it."""
        if self._random is not None:
            rng.apply(self._random)
            self._random = None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the loss that the trainer logged last; reported with the next step."""
        self._loss = (kwargs.get("logs") or {}).get("loss", self._loss)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the step and save it."""
        self._session.step(state.global_step, loss=self._loss)
        self._stepped = True
        self._session.checkpoint(self._tree, last=state.global_step >= state.max_steps)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the step at which the training stops early, also where its save was left out for the one before."""
        if control.should_training_stop and self._stepped:
            self._session.checkpoint(self._tree, last=True)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report, with the first batch of an evaluation, that steps will be missing for a while."""
        if self._evaluation is None:
            self._evaluation = self._session.phase("eval")
            self._evaluation.__enter__()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report that the evaluation is over."""
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        """Report that the prediction is over."""
        self.on_evaluate(args, state, control)
