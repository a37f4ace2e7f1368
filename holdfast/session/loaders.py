"""torchdata's loaders at a restore: the script makes their iterators, which draw no number that was drawn before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from holdfast.errors import ScriptRefusedError

_MODULE = "torchdata.stateful_dataloader.stateful_dataloader"


def refuse_forgetful(name: str, value: Any) -> None:
    """Refuse a loader, also in accelerate's wrapper, that keeps how many samples its sampler gave, but not which ones.

    Raises:
        ScriptRefusedError: its sampler draws an order at random, and has no state; ``shuffle=True`` takes torchdata's.
    """
    module: Any = sys.modules.get(_MODULE)
    if module is None:
        return
    for each in (value, getattr(value, "base_dataloader", None)):
        if isinstance(each, module.StatefulDataLoader):
            _require_an_order(name, each)


def _require_an_order(name: str, loader: Any) -> None:
    data = torch.utils.data
    kinds = {data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler}
    samplers = [loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
    found = next((each for each in samplers if type(each) in kinds), None)
    if found is not None and not hasattr(found, "state_dict"):
        raise ScriptRefusedError(
            f"state[{name!r}] is a StatefulDataLoader over a {type(found).__name__} of torch, which draws its order "
            "again after a restore: samples would come twice, and others never. Give `shuffle=True` in place of a "
            "sampler, torchdata.stateful_dataloader.sampler.RandomSampler, or a DataLoader in an EpochLoader of "
            "holdfast.data"
        )


@contextmanager
def saving(name: str) -> Iterator[None]:
    """Refuse such a loader wherever it is inside of a part, once the part asks it for its state.

    Raises:
        ScriptRefusedError: as :func:`refuse_forgetful` does.
    """
    module: Any = sys.modules.get(_MODULE)
    if module is None:
        yield
        return
    ask = module.StatefulDataLoader.state_dict

    def ask_and_check(loader: Any) -> dict[str, Any]:
        _require_an_order(name, loader)
        held: dict[str, Any] = ask(loader)
        return held

    module.StatefulDataLoader.state_dict = ask_and_check
    try:
        yield
    finally:
        module.StatefulDataLoader.state_dict = ask


@contextmanager
def restoring(name: str) -> Iterator[list[Any]]:
    """Watch which loaders the part ``name`` gives a state to, itself or by what it wraps; yield them.

    A loader makes its iterator when it is first iterated over, or asked for its state. That takes the order of its
    sampler as it is then: the script may give the sampler its epoch after the restore, so it must not be made earlier.
    Making it draws random numbers, which the saved run had drawn before the save: the random state is put back.

    Raises:
        ScriptRefusedError: as :func:`refuse_forgetful` does.
    """
    loaded: list[Any] = []
    module: Any = sys.modules.get(_MODULE)
    if module is None:
        yield loaded
        return
    load = module.StatefulDataLoader.load_state_dict

    def load_and_note(loader: Any, state: dict[str, Any]) -> None:
        _require_an_order(name, loader)
        load(loader, state)
        if loader.next_iter_state is not None:
            loaded.append(loader)
            _draw_nothing_once(loader)

    module.StatefulDataLoader.load_state_dict = load_and_note
    try:
        yield loaded
    finally:
        module.StatefulDataLoader.load_state_dict = load


def _draw_nothing_once(loader: Any) -> None:
    """Have the next iterator of ``loader`` made with the random state as it is, and left so."""
    make: Callable[[], Any] = type(loader)._get_iterator.__get__(loader)

    def once() -> Any:
        vars(loader).pop("_get_iterator", None)
        own = loader.generator
        before = torch.get_rng_state(), own.get_state() if own is not None else None
        try:
            return make()
        finally:
            torch.set_rng_state(before[0])
            if own is not None:
                own.set_state(before[1])

    loader._get_iterator = once
