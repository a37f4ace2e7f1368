"""Kinds of values that are written as they are, or refused with their path: nothing of them is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.errors import ScriptRefusedError
from holdfast.storage.checkpoints.format.decoder import decode
from holdfast.storage.checkpoints.format.encoder import Encoder
from tests.session.kinds.values import Begun

pytestmark = pytest.mark.torch


def _node(value: Any) -> Any:
    return Encoder(lambda path, tensor: None).part("extra", value)


def test_what_a_dataclass_computes_once_is_computed_again() -> None:
    """A lock could not be saved, and need not be; attributes that are set once are."""
    value = Begun(3)
    assert value.lock
    again = decode(_node({"it": value}), {})["it"]
    assert "lock" not in vars(again)
    assert again.generator.random() == value.generator.random()


def test_what_numpy_cannot_write_is_refused_by_its_path() -> None:
    """Fields that overlap have no description: the message is numpy's, and says where."""
    kind = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 2], "itemsize": 4})
    with pytest.raises(ScriptRefusedError, match=r"state 'extra.in.0': an object of type numpy.ndarray: "):
        _node({"in": [np.zeros(2, kind)]})
