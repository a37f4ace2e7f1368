"""List and watch against a scripted server: interruptions of every kind, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drivers.kubernetes import list_and_watch as module
from holdfast.drivers.kubernetes.api import BusyError, GoneError, Object
from holdfast.drivers.kubernetes.list_and_watch import follow
from holdfast.errors import UnauthorizedError


class Clock:
    """A clock that stands still, except during a sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Over(Exception):  # noqa: N818  (the end of the script, not an error)
    """The script is done."""


Step = Callable[[], object] | Object | Exception


class Server:
    """Plays a script: events, errors that end a stream, or something to be done meanwhile."""

    def __init__(self, script: Sequence[Step], here: dict[str, int] | None = None) -> None:
        self.script = list(script)
        self.here = dict(here or {})
        self.version = 10
        self.lists = 0
        self.watched_from: list[str] = []

    def get(self, path: str, **query: str) -> Object:
        self.lists += 1
        items = [thing(uid, version) for uid, version in self.here.items()]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def watch(self, path: str, *, resource_version: str, timeout_s: float, **query: str) -> Iterator[Object]:
        self.watched_from.append(resource_version)
        while self.script:
            step = self.script.pop(0)
            if isinstance(step, Exception):
                raise step
            if callable(step):
                step()
            else:
                yield step
        raise Over


def thing(uid: str, version: int) -> Object:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "spec": version}


def event(kind: str, uid: str, version: int) -> Object:
    return {"type": kind, "object": thing(uid, version)}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def seen(server: Server, timeout_s: float = 100.0) -> list[dict[str, int]]:
    """Everything that is yielded until the script is over: version by uid."""
    found = []
    try:
        for objects in follow(server, "/things", timeout_s):
            found.append({uid: each["spec"] for uid, each in objects.items()})
    except Over:
        return found
    raise AssertionError("it ended before the script did")


def test_what_is_there_comes_first_and_then_every_change() -> None:
    """Added, modified, deleted."""
    server = Server(
        [event("ADDED", "b", 11), event("MODIFIED", "a", 12), event("DELETED", "b", 13)], {"a": 1}
    )
    assert seen(server) == [{"a": 1}, {"a": 1, "b": 11}, {"a": 12, "b": 11}, {"a": 12}]
    assert server.lists == 1


def test_broken_stream_is_taken_up_where_it_ended(clock: Clock) -> None:
    """The next watch begins at the newest version seen; the list is not read again."""
    server = Server([event("ADDED", "a", 11), BusyError("reset"), event("MODIFIED", "a", 12)])
    assert seen(server)[-1] == {"a": 12}
    assert server.watched_from == ["10", "11"]
    assert server.lists == 1
    assert len(clock.slept) == 1


def test_bookmark_moves_the_point_and_says_nothing() -> None:
    """After it, older events need not be kept by the server."""
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "99"}}}
    server = Server([bookmark, BusyError("reset")])
    assert seen(server) == [{}]
    assert server.watched_from == ["10", "99"]


def test_forgotten_version_lists_again() -> None:
    """410: what was missed, deletions included, is seen from the new list."""
    server = Server([], {"a": 1, "b": 2})

    def change() -> None:
        server.here, server.version = {"b": 3}, 50

    server.script = [change, GoneError("too old"), event("ADDED", "c", 51)]
    assert seen(server) == [{"a": 1, "b": 2}, {"b": 3}, {"b": 3, "c": 51}]
    assert server.watched_from == ["10", "50"]


def test_busy_server_is_asked_ever_later_and_as_late_as_it_says(clock: Clock) -> None:
    """Waits double, reset by success, and are never shorter than Retry-After."""
    busy = [BusyError("503") for _ in range(5)]
    server = Server([*busy, event("ADDED", "a", 11), BusyError("503"), BusyError("429", after_s=7.0)])
    seen(server)
    assert all(later > earlier for earlier, later in zip(clock.slept[:4], clock.slept[2:5], strict=False))
    assert clock.slept[5] <= module._FIRST_WAIT_S
    assert clock.slept[6] == 7.0


def test_it_ends_in_time_whatever_the_server_does(clock: Clock) -> None:
    """A server that only ever ends the stream does not hold the caller, nor is it asked without pause."""
    server = Server([BusyError("reset") for _ in range(10_000)])
    assert list(follow(server, "/things", 30.0)) == [{}]
    assert clock.now == pytest.approx(30.0)
    assert len(server.watched_from) < 30


def test_denial_that_stays_is_reported() -> None:
    """Once may be a server that has just started; a missing right is the operator's to add."""
    denied = [UnauthorizedError("watch pods"), UnauthorizedError("watch pods")]
    with pytest.raises(UnauthorizedError):
        list(follow(Server(denied), "/things", 30.0))


changes = st.tuples(st.sampled_from("abc"), st.booleans())
troubles = st.sampled_from(["reset", "gone", "busy"])


@given(st.lists(st.one_of(changes, troubles), max_size=30))
def test_the_end_is_what_the_server_has_whatever_happens_between(happens: list[object]) -> None:
    """Any changes, any interruptions: the last yield is the server's own state."""
    server = Server([])
    truth: dict[str, int] = {}
    version = 10
    for each in happens:
        if each == "gone":
            state, now = dict(truth), version
            server.script += [
                lambda state=state, now=now: (
                    setattr(server, "here", state),
                    setattr(server, "version", now),
                ),
                GoneError("410"),
            ]
        elif isinstance(each, str):
            server.script.append(BusyError(each))
        elif isinstance(each, tuple):
            uid, deleted = each
            version += 1
            if deleted and uid in truth:
                del truth[uid]
                server.script.append(event("DELETED", uid, version))
            elif not deleted:
                server.script.append(event("MODIFIED" if uid in truth else "ADDED", uid, version))
                truth[uid] = version
    assert seen(server, timeout_s=1e9)[-1] == truth
