"""The place in ``for epoch in ...: for batch in loader: ...`` of a plain ``DataLoader``, whatever its sampler is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader

from holdfast.errors import ScriptRefusedError, SettingsError
from holdfast.session import rng
from holdfast.session.rest_of_data import beginning_after, by_index


class EpochLoader:
    """A ``DataLoader`` that goes on within an epoch, to be put into the state given to the Session.

    ::

        loader = EpochLoader(DataLoader(data, batch_size=32, shuffle=True))
        for epoch in loader.epochs(range(1, 11)):
            for number, batch in enumerate(loader, loader.batch):
                ...
            evaluate()
            scheduler.step()

    An epoch is done when the next one is asked for: what follows its last batch (an evaluation, a scheduler's step)
    happens after a restore of that batch, too. One that is left by ``break`` is over. The order of an epoch is drawn
    again from the random state of its beginning; random numbers of training are those of a run that was not
    interrupted.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Wrap ``loader``.

        Raises:
            SettingsError: it has a state of its own.
        """
        if hasattr(loader, "load_state_dict"):
            raise SettingsError(
                f"EpochLoader: a {type(loader).__name__} has a state of its own. Give torch's DataLoader in its place"
            )
        self.loader = loader
        self.epoch = 0
        """Epochs that are done."""
        self.batch = 0
        """Batches of this epoch that were handed out."""
        self.taken = 0
        """Batches of all epochs that were handed out."""
        self._beginning: dict[str, Any] = {}
        self._goes_on = self._over = False
        self._iterator: object = None
        """Stands for the epoch's iterator; None: there is none yet."""

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        """Return what the wrapped loader has: ``dataset``, ``sampler``, ``batch_size``."""
        if name == "loader":  # it is not made yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def epochs(self, numbers: Sequence[int]) -> Iterator[int]:
        """Yield those of all epochs' ``numbers`` that are not done; first the one that was broken off."""
        while self.epoch < len(numbers):
            yield numbers[self.epoch]
            self.epoch, self.batch, self._iterator = self.epoch + 1, 0, None
            self._goes_on = self._over = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the epoch's batches from the place on; each counts as used when it is handed out."""
        if self._iterator is not None:
            raise ScriptRefusedError(
                "EpochLoader: a second iterator within one epoch, whose place would be lost. Loop over "
                "`loader.epochs(range(...))` and, within it, once over the loader; look at a batch beforehand "
                "through a DataLoader of its own"
            )
        self._iterator = mine = object()
        batches = self._rest() if self._goes_on else self._whole()
        return iter(()) if self._over else self._counted(batches, mine)

    def state_dict(self) -> dict[str, Any]:
        """Return the place, and the random state at the beginning of the epoch."""
        place = {"epoch": self.epoch, "batch": self.batch, "taken": self.taken, "over": self._over}
        return {**place, "beginning": self._beginning, "world_size": _world_size()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a place, with the next iterator.

        Raises:
            ScriptRefusedError: it was saved by another number of ranks.
        """
        if state["world_size"] != _world_size():
            raise ScriptRefusedError(
                f"EpochLoader: its place was saved by {state['world_size']} ranks, and there are {_world_size()} now: "
                "the batches of an epoch are others. Run it with as many ranks as before, or use an ElasticLoader"
            )
        self.epoch, self.batch, self.taken = state["epoch"], state["batch"], state["taken"]
        self._beginning = state["beginning"]
        self._goes_on, self._iterator = self.batch > 0, None
        self._over = state.get("over", False)

    def _counted(self, batches: Iterator[Any], mine: object) -> Iterator[Any]:
        try:
            for batch in batches:
                self.batch, self.taken = self.batch + 1, self.taken + 1
                yield batch
        except GeneratorExit:  # the script left the loop, by `break` mostly; perhaps that of an epoch before
            self._over = self._over or self._iterator is mine
            raise

    def _whole(self) -> Iterator[Any]:
        self._beginning = {
            "random": rng.capture(),
            "generators": [each.get_state() for each in self._generators()],
        }
        return iter(self.loader)

    def _rest(self) -> Iterator[Any]:
        """Begin the epoch as it was begun, and leave out what was done; the random state stays as it is now."""
        now = rng.capture()
        if self.epoch and self.loader.persistent_workers:
            iter(self.loader)  # the first one of a process draws a number more than those of later epochs
        rng.apply(self._beginning["random"])
        for generator, saved in zip(self._generators(), self._beginning["generators"], strict=True):
            generator.set_state(saved)
        if by_index(self.loader):
            with beginning_after(self.loader, self.batch) as rest:
                batches = iter(self.loader)
            rest.begin()
        else:
            batches = iter(self.loader)
            for _ in range(self.batch):
                next(batches, None)
        rng.apply(now)
        return batches

    def _generators(self) -> list[torch.Generator]:
        """Return the generators from which orders are drawn, each once."""
        holders = [self.loader, self.loader.sampler, self.loader.batch_sampler]
        holders.append(getattr(self.loader.batch_sampler, "sampler", None))
        found = [getattr(each, "generator", None) for each in holders]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
