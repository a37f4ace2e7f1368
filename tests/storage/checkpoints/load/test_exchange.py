"""Messages between ranks are known to those of the release before."""

from __future__ import annotations

import pickle

import pytest

from holdfast.storage.checkpoints.format import describe
from holdfast.storage.checkpoints.load import held
from holdfast.storage.checkpoints.remote import read_orders, remote_reader

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (describe.ItemKind, "Kind"),
        (held.HeldEntry, "Entry"),
        (read_orders.ReadOrders, "Orders"),
        (remote_reader.FirstReads, "Opening"),
    ],
)
def test_a_class_that_was_renamed_travels_under_its_former_name(kind: type, name: str) -> None:
    """Machines of one job are brought up to date one by one: each side finds the class of the other."""
    assert pickle.dumps(kind, protocol=0).startswith(f"c{kind.__module__}\n{name}\n".encode())
    assert pickle.loads(pickle.dumps(kind)) is kind
