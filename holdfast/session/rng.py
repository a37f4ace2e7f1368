"""Random state of a rank: python, numpy, torch, and its CUDA device where one is in use."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.layout import dump_object
from holdfast.storage.checkpoints.format.structure import RANDOM
from holdfast.storage.checkpoints.load.exchange import own_device

PREFIX = RANDOM


_last: dict[str, Any] = {}


def key(rank: int) -> str:
    """Return the name of a rank's random state in a checkpoint."""
    return f"{PREFIX}{rank}"


def capture() -> dict[str, Any]:
    """Return the random state of this process, as checkpoint items; unchanged ones are the objects of the last call."""
    python, numpy = random.getstate(), _of_numpy()
    if _last.get("python") != python:
        _last["python"] = python
    if "numpy" not in _last or not _same(_last["numpy"], numpy):
        _last["numpy"] = numpy
    state = _last | {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state(own_device())
    return state


def _of_numpy() -> Any:
    """Return the state of numpy's functions: a tuple, or a dictionary where a script gave them another generator."""
    state = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return state
    return "MT19937", state["state"]["key"], state["state"]["pos"], state["has_gauss"], state["gauss"]


def _same(left: Any, right: Any) -> bool:
    """Return whether two states of numpy are alike: name of the generator, its words, and plain numbers."""
    if isinstance(left, dict) or isinstance(right, dict):
        return type(left) is type(right) and dump_object(left) == dump_object(right)
    return left[1].tobytes() == right[1].tobytes() and (left[0], *left[2:]) == (right[0], *right[2:])


def items(rank: int) -> dict[str, Any]:
    """Return the random state of this process under the full names that it has in a checkpoint."""
    return {f"{key(rank)}.{name}": each for name, each in capture().items()}


def paths(rank: int) -> dict[str, tuple[str | int, ...]]:
    """Return, by full name, where in the nested state the random state of ``rank`` is."""
    return {name: (key(rank), name.removeprefix(f"{key(rank)}.")) for name in items(rank)}


def found(loaded: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the random state of ``rank`` among the items that were loaded by full name."""
    begin = f"{key(rank)}."
    return {name.removeprefix(begin): each for name, each in loaded.items() if name.startswith(begin)}


def saved_ranks(names: Iterable[str]) -> list[int]:
    """Return ranks whose random state is among a checkpoint's flat key ``names``."""
    return sorted({int(name.removeprefix(PREFIX).split(".")[0]) for name in names if name.startswith(PREFIX)})


def source(rank: int, saved: list[int]) -> int | None:
    """Return the rank whose random state ``rank`` takes: its own, or at another world size ``rank % saved``."""
    if not saved:
        return None
    return rank if rank in saved else saved[rank % len(saved)]


def apply(state: Mapping[str, Any], *, reseed_as: int | None = None) -> None:
    """Set the random state of this process.

    Args:
        state: the result of :func:`capture`.
        reseed_as: a rank that took another's state continues it under a seed drawn from that state plus this
            number: still the same in every restore, and no two ranks draw alike.
    """
    if "python" in state:
        random.setstate(_tuples(state["python"]))
    if "numpy" in state:
        _set_numpy(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"], own_device())
    if reseed_as is not None:
        seed = int(torch.randint(2**31, (1,), device="cpu")) + reseed_as
        random.seed(seed)
        _seed_numpy(seed % 2**32)
        torch.manual_seed(seed)


def _set_numpy(state: Any) -> None:
    """Set the state of numpy's functions, which may be that of another generator than they have now."""
    kind = state["bit_generator"] if isinstance(state, dict) else state[0]
    if np.random.get_state(legacy=False)["bit_generator"] != kind:
        _give_numpy(str(kind), None)
    np.random.set_state(state)


def _seed_numpy(seed: int) -> None:
    """Seed numpy's functions; ``numpy.random.seed`` takes its own generator alone."""
    kind = np.random.get_state(legacy=False)["bit_generator"]
    if kind == "MT19937":
        np.random.seed(seed)
    else:
        _give_numpy(kind, seed)


def _give_numpy(kind: str, seed: int | None) -> None:
    found = getattr(np.random, kind, None)
    if not (isinstance(found, type) and issubclass(found, np.random.BitGenerator)):
        raise CheckpointError(f"the random state of numpy is of its {kind!r}, which this numpy does not have")
    np.random.set_bit_generator(found(seed))  # type: ignore[attr-defined]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value
