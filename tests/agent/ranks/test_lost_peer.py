"""An exception that a lost peer explains, also one that the script raised while it dealt with it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.ranks import exits, lost_peer
from holdfast.session.keep import main_thread, training_function

PEER = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711"


class Model:
    """State of a training function."""


def plain() -> None:
    raise RuntimeError(PEER)


def wrapped() -> None:
    try:
        plain()
    except RuntimeError as error:
        raise ValueError("step 12 failed") from error


def cleanup() -> None:
    try:
        plain()
    finally:
        raise AttributeError("no attribute 'close'")


def group() -> None:
    try:
        plain()
    except RuntimeError as error:
        raise ExceptionGroup("both", [error]) from None


def in_a_cycle() -> None:
    try:
        plain()
    except RuntimeError as error:
        wrapper = ValueError("step 12 failed")
        error.__context__ = wrapper
        raise wrapper from error


def own() -> None:
    raise ValueError("an error of its own")


def hidden() -> None:
    try:
        plain()
    except RuntimeError:
        raise ValueError("an error of its own") from None


def full_disk() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            plain()
    except RuntimeError as error:
        raise ValueError("step 12 failed") from error


def raised(what: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (each of these raises another one)
        what()
    return caught.value


@pytest.mark.parametrize("what", [plain, wrapped, cleanup, group, in_a_cycle])
def test_the_lost_peer_behind_an_error_is_found(what: Callable[[], None]) -> None:
    found = lost_peer.behind(raised(what))
    assert str(found) == PEER
    words = {"error_type": type(found).__name__, "message": str(found), "at": 1.0}
    assert exits.evidence(1, words, "")["cascade"]


@pytest.mark.parametrize("what", [own, hidden, full_disk])
def test_another_cause_is_no_lost_peer(what: Callable[[], None]) -> None:
    assert lost_peer.behind(raised(what)) is None


@pytest.mark.parametrize("what", [plain, wrapped, cleanup, group])
def test_a_survivor_whose_script_raises_while_it_deals_with_the_loss_leaves(what: Callable[[], None]) -> None:
    """Without what its training function held: the next epoch needs the memory."""
    orders: Any = SimpleNamespace(over=threading.Event())
    made: list[weakref.ref[Any]] = []

    def train() -> None:
        model = Model()
        made.append(weakref.ref(model))
        what()

    left = training_function._left(train, main_thread.MainThread(), orders, 1)
    assert isinstance(left, training_function._Left)
    assert str(left.lost) == PEER
    gc.collect()
    assert made[0]() is None


def test_an_error_of_its_own_is_raised() -> None:
    orders: Any = SimpleNamespace(over=threading.Event())
    with pytest.raises(ValueError, match="of its own"):
        training_function._left(own, main_thread.MainThread(), orders, 1)
