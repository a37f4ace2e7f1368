"""Copies of one save by two threads: the one that trains never waits for one that has not begun."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save import transfer
from holdfast.storage.checkpoints.save.transfer import (
    SMALL_BYTES,
    STRETCH_BYTES,
    Route,
    TensorMove,
    Transfer,
    in_parts,
)

pytestmark = pytest.mark.torch


def moves(*sizes: int) -> list[TensorMove]:
    """Moves of random bytes, one behind the other in a file."""
    made, offset = [], 0
    for nbytes in sizes:
        source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8)
        made.append(TensorMove(source, torch.zeros_like(source), offset))
        offset += nbytes
    return made


MIXED = (100, SMALL_BYTES, 3 * SMALL_BYTES, 1, 2 * STRETCH_BYTES + 7)


def test_a_thread_that_waits_copies_what_the_other_has_not_begun() -> None:
    made = moves(*MIXED)
    copied = Transfer(Route(made))
    expected = [each.source.clone() for each in made]
    copied.wait()
    for each in made:
        each.source.zero_()
    reached: list[int] = []
    copied.run(reached.append)
    assert all(torch.equal(each.target, was) for each, was in zip(made, expected, strict=True))
    assert copied.changed == []


@pytest.mark.parametrize("waits", [1, 3])
def test_threads_that_copy_at_once_copy_everything_once(waits: int) -> None:
    for _ in range(50):
        made = moves(*MIXED)
        copied = Transfer(Route(made))
        threads = [threading.Thread(target=copied.wait) for _ in range(waits)]
        for each in threads:
            each.start()
        copied.run(lambda _: None)
        for each in threads:
            each.join()
        assert all(torch.equal(each.target, each.source) for each in made)


def failing(error: BaseException) -> Callable[..., None]:
    """A copy that raises."""

    def copy_all(*_: object) -> None:
        raise error

    return copy_all


def test_a_copy_that_fails_where_training_waits_fails_the_save_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = moves(*MIXED)  # a transfer has the addresses alone
    copied = Transfer(Route(made))
    monkeypatch.setattr(transfer, "copy_all", failing(RuntimeError("no memory")))
    copied.wait()
    with pytest.raises(CheckpointError, match="no memory"):
        copied.run(lambda _: None)


def test_an_interrupt_of_the_training_thread_leaves_no_thread_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = moves(*MIXED)  # a transfer has the addresses alone
    copied = Transfer(Route(made))
    monkeypatch.setattr(transfer, "copy_all", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        copied.wait()
    with pytest.raises(CheckpointError, match="KeyboardInterrupt"):
        copied.run(lambda _: None)


IMAGES = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)


@pytest.mark.parametrize(
    "source",
    [
        IMAGES.to(memory_format=torch.channels_last),
        IMAGES[:1].to(memory_format=torch.channels_last),
        IMAGES.expand(3, 2, 3, 4, 5),
        torch.complex(IMAGES, IMAGES).conj(),
        IMAGES[..., ::2],
    ],
    ids=["channels last", "one image", "expanded", "conjugated", "strided"],
)
def test_what_lies_in_another_order_is_copied_in_small_parts(
    source: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is full has no room for the whole once more: the elements are put in order on it."""
    monkeypatch.setattr(transfer, "ROOM_BYTES", 48)
    target = torch.zeros(source.shape, dtype=source.dtype)
    parts = in_parts(TensorMove(source, target, 8))
    assert len(parts) > 1
    for each in parts:
        in_order = each.source.is_contiguous() and not each.source.is_conj()
        assert in_order or each.target.nbytes <= 48
        assert each.target.is_contiguous()
        each.target.copy_(each.source)
    assert torch.equal(target, source)


def test_what_lies_in_order_is_copied_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "ROOM_BYTES", 48)
    move = TensorMove(IMAGES, torch.zeros_like(IMAGES), 0)
    assert in_parts(move) == [move]


class Device:
    """Stands for a GPU's stream that copies."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self, _: object) -> Device:
        """Begin."""
        return self

    def before_update(self) -> None:
        """Have the current streams wait."""
        self.done.append("streams wait")

    def synchronize(self) -> None:
        """Wait for the end."""
        self.done.append("ended")


def test_only_who_asks_for_the_end_of_a_copy_waits_for_the_gpu() -> None:
    """An optimizer's stream waits by itself; what else changes tensors may be in any stream."""
    route, device = Route(moves(100)), Device()
    route.on_device = {torch.device("cuda", 0): ([], [])}
    copied = Transfer(route, device)  # type: ignore[arg-type]
    copied.wait()
    assert device.done == ["streams wait"]
    copied.finish()
    assert device.done == ["streams wait"] * 2 + ["ended"]
