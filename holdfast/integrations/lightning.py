"""Lightning's ``Trainer``: add :class:`HoldfastCallback`, change nothing else.

::

    trainer = Trainer(max_steps=1000, callbacks=[HoldfastCallback()])
    trainer.fit(module, loader)

Module, optimizers, schedulers, callbacks, random state and the loops' progress are saved after every step and restored
before the first. Batches that were done before are passed over. Under plain ``torchrun`` the callback does nothing.
Serves ``lightning`` and ``pytorch_lightning``, whichever the script has imported.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from holdfast.errors import ScriptRefusedError
from holdfast.session import Session, rng
from holdfast.session.phase import Phase
from holdfast.session.rest_of_data import beginning_after, by_index
from holdfast.storage.checkpoints.load.safe_load import load_object

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
elif "pytorch_lightning" in sys.modules or find_spec("lightning") is None:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class _Place:
    """Where the trainer is, as a ``Stateful``; its dictionaries have other keys when a run begins."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.epoch_random: dict[str, Any] = {}
        """Random state at the beginning of the epoch, from which the order of its data was drawn."""
        self.between_epochs = False

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        callbacks = {each.state_key: each.state_dict() for each in trainer.callbacks}
        return {
            "loops": trainer.fit_loop.state_dict(),
            "schedulers": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
            "precision": trainer.precision_plugin.state_dict(),
            "callbacks": {key: state for key, state in callbacks.items() if state},
            "epoch_random": self.epoch_random,
            "between_epochs": self.between_epochs,
            "world_size": trainer.world_size,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        trainer, state = self._trainer, saved
        if saved.keys() == {"state"}:  # as older checkpoints have it: one item, by torch.save
            state = load_object(io.BytesIO(saved["state"]), "Lightning's state")
        ranks = state.get("world_size", trainer.world_size)
        if ranks != trainer.world_size:
            raise ScriptRefusedError(
                f"Lightning's place in its data was saved by {ranks} ranks, and there are {trainer.world_size} now: "
                "the batches of an epoch are others. Run it with as many ranks as before"
            )
        trainer.fit_loop.load_state_dict(state["loops"])
        for config, scheduler in zip(trainer.lr_scheduler_configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(scheduler)
        if state["precision"]:
            trainer.precision_plugin.load_state_dict(state["precision"])
        for each in trainer.callbacks:
            if each.state_key in state["callbacks"]:
                each.load_state_dict(state["callbacks"][each.state_key])
        self.epoch_random = state["epoch_random"]
        self.between_epochs = state["between_epochs"]
        if self.between_epochs:
            self._begin_epoch_again()

    def _begin_epoch_again(self) -> None:
        """Begin again an epoch that was announced with no batch done: the loops take it for a broken one."""
        fit = self._trainer.fit_loop
        for progress in (fit.epoch_progress.current, fit.epoch_progress.total):
            progress.ready -= 1
        for loop in (fit, fit.epoch_loop, fit.epoch_loop.val_loop):
            loop.on_iteration_done()


class HoldfastCallback(Callback):
    """Reports steps, saves after each, and restores before the first."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session or Session()
        self._tree: dict[str, Any] = {}
        self._step = self._optimizer_steps = 0
        self._stepped = self._owed = False
        """A step was reported; and one that is not yet saved."""
        self._random: dict[str, Any] | None = None
        """Random state as restored; applied where it was captured."""
        self._first_random: dict[str, Any] | None = None
        """Random state from which the first iterator over the data was made, before the first epoch's beginning."""
        self._evaluation: Phase | None = None

    @property
    def session(self) -> Session:
        """The session, for more than the callback does, such as ``session.flush()``."""
        return self._session

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore what the restore plan chose; the trainer counts on from there."""
        self._place = _Place(trainer)
        self._tree = {
            "model": pl_module,
            **{f"optimizer-{number}": each for number, each in enumerate(trainer.optimizers)},
            # The order of the data may differ from rank to rank.
            f"lightning-{os.environ.get('RANK', '0')}": self._place,
        }
        self._step = self._session.restore(self._tree)
        self._optimizer_steps = trainer.global_step
        if self._step:
            self._random = rng.capture()
            # "... and your dataloader is not resumable": it is, by this callback.
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")
        elif self._session.active:
            self._note_first_random(trainer)

    def _note_first_random(self, trainer: Trainer) -> None:
        """Have the random state noted just before the first iterator is made: no hook of callbacks is called there.

        Another iterator, made where there is one, would draw once more: weights would differ from those without
        an agent.
        """
        fit = trainer.fit_loop
        load = fit._load_combined_loader_states

        def load_and_note() -> None:
            load()
            if self._first_random is None:
                self._first_random = rng.capture()

        fit._load_combined_loader_states = load_and_note

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass over the batches of a broken epoch that were done before."""
        if self._random is None:
            return
        if self._place.between_epochs:
            _end_epoch_of_loaders(trainer)
            return
        rng.apply(self._place.epoch_random)
        _pass_over(trainer, trainer.fit_loop.epoch_loop.batch_progress.current.ready)
        rng.apply(self._random)
        self._random = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what the last step of the epoch before left, its validation included."""
        if not self._session.active:
            return
        if self._random is not None:
            rng.apply(self._random)
            self._random = None
        first = None if trainer.current_epoch else self._first_random
        self._place.epoch_random = rng.capture() if first is None else first
        self._save(between_epochs=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the step, and save it unless validation comes first."""
        if trainer.global_step == self._optimizer_steps:
            return  # gradients are being accumulated
        self._optimizer_steps = trainer.global_step
        self._step += 1
        self._stepped = True
        self._session.step(self._step, loss=outputs.get("loss") if isinstance(outputs, dict) else outputs)
        self._owed = True
        fit = trainer.fit_loop
        # A restored loop takes itself for restarting until its epoch ends, and would then leave plateau schedulers out.
        fit._restarting = False
        if not _epoch_ends(trainer) and not fit.epoch_loop._should_check_val_fx(fit._data_fetcher):
            self._save()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report that steps will be missing for a while."""
        self._evaluation = self._session.phase("eval")
        self._evaluation.__enter__()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the step before, now that validation has drawn its random numbers."""
        if self._evaluation:
            self._evaluation.__exit__(None, None, None)
        if not trainer.sanity_checking and not _epoch_ends(trainer):
            self._save()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last step in any case: it may be within an epoch, and its save was left out for the one before."""
        if self._owed:
            self._place.between_epochs = self._owed = False
        if self._stepped:
            self._session.checkpoint(self._tree, last=True)

    def _save(self, *, between_epochs: bool = False) -> None:
        if self._owed:
            self._place.between_epochs = between_epochs
            self._session.checkpoint(self._tree)
            self._owed = False


def _epoch_ends(trainer: Trainer) -> bool:
    return bool(trainer.fit_loop.epoch_loop._num_ready_batches_reached())


def _end_epoch_of_loaders(trainer: Trainer) -> None:
    """End the epoch of loaders with a state of their own, so that the next iterator begins another."""
    fit = trainer.fit_loop
    states, fit._combined_loader_states_to_load = fit._combined_loader_states_to_load, []
    fit._combined_loader._load_state_dicts(states)
    for each in fit._combined_loader.flattened:
        if states and hasattr(each, "load_state_dict"):
            iter(each)  # only an iterator takes the state in


def _pass_over(trainer: Trainer, batches: int) -> None:
    """Begin the epoch's data after so many batches. What has a state of its own, Lightning has brought back."""
    fetcher = trainer.fit_loop._data_fetcher
    loaders = fetcher.combined_loader.flattened
    if any(hasattr(each, "load_state_dict") for each in loaders):
        return
    for each in loaders:
        for sampler in (getattr(each, "sampler", None), getattr(each, "batch_sampler", None)):
            for one in (sampler, getattr(sampler, "sampler", None)):
                if callable(getattr(one, "set_epoch", None)):
                    one.set_epoch(trainer.current_epoch)  # type: ignore[union-attr]
    if len(loaders) == 1 and by_index(loaders[0]):
        with beginning_after(loaders[0], batches) as rest:
            iter(fetcher)
        rest.begin()
        return
    if not trainer.current_epoch:
        for each in loaders:
            if getattr(each, "persistent_workers", False):
                # Where one was made, it is begun again without the draw that the first epoch's order came after.
                each._iterator = None
    iter(fetcher)
    for _ in range(batches):
        next(fetcher)
    fetcher.fetched = 0  # the loop adds them itself
