"""Settings of a script around its calls of the Session: another default device, inference mode, warnings as errors."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.session.kinds.compare import difference
from tests.session.kinds.test_trainings import contents
from tests.session.kinds.tiers import site
from tests.session.kinds.values import LARGE, Holder
from tests.session.small import seed, train, training

pytestmark = pytest.mark.torch
REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def _another_device() -> Iterator[None]:
    """A tensor on it has no elements: what is made without a device is noticed, as it is where that is a GPU."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def _strict() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of sessions of tests before
        yield


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default device": _another_device,
    "inference mode": torch.inference_mode,
    "warnings are errors": _strict,
}


def _at(step: int) -> dict[str, Any]:
    """Tensors that lie in the tree, and one that is an item."""
    return {
        "small": torch.arange(step + 1, device="cpu"),
        "empty": torch.empty(0, 2, device="cpu"),
        "large": torch.zeros(LARGE, device="cpu") + step,
        "sparse": torch.sparse_coo_tensor([[0, step]], [1.0, 2.0], (9,), device="cpu"),
        "rows": (torch.eye(4, device="cpu") * (step + 1)).to_sparse_csr(),
        "generator": np.random.default_rng(step),
    }


def _begun() -> dict[str, Any]:
    return training() | {"extra": Holder(_at)}


def _step(state: dict[str, Any], step: int) -> float:
    state["extra"].advance(step)
    return train(state)


@pytest.mark.filterwarnings("ignore:.*Sparse.*beta state")
@pytest.mark.parametrize("tier", ["memory", "s3"])
@pytest.mark.parametrize("name", AROUND)
def test_saves_and_restores_are_as_ever(name: str, tier: str, tmp_path: Path) -> None:
    """Every save counts, and the training goes on exactly."""
    seed(1)
    whole = _begun()
    expected = [_step(whole, step) for step in range(1, 5)]
    with site(tmp_path) as place:
        seed(1)
        state = _begun()
        session, losses = place.begin(state), []
        for step in (1, 2):
            losses.append(_step(state, step))
            with AROUND[name]():
                place.save(session, state, step)
        seed(9)
        state = _begun()
        with AROUND[name]():
            session = place.restore(tier, 2, state)
        for step in (3, 4):
            losses.append(_step(state, step))
            with AROUND[name]():
                place.save(session, state, step)
    assert losses == expected
    assert not difference(contents(whole), contents(state))


_MAKERS = frozenset(
    [
        "arange",
        "as_tensor",
        "asarray",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "ones",
        "rand",
        "randint",
        "randn",
        "scalar_tensor",
        "sparse_coo_tensor",
        "sparse_compressed_tensor",
        "tensor",
        "zeros",
        "nested_tensor",
    ]
)


def test_every_tensor_is_made_on_a_device_that_is_named() -> None:
    """Else it lies on that of ``torch.set_default_device``: a GPU's memory is no buffer for a read or a vote."""
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for folder in ("storage/checkpoints", "holdfast/session")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MAKERS
        and ast.unparse(node.func.value) in ("torch", "torch.nested")
        and not any(each.arg == "device" for each in node.keywords)
    ]
    assert found == []
