"""The order in which connections are dropped where too many wait."""

from __future__ import annotations

from holdfast.strangers import Strangers


def dropping(strangers: Strangers, gone: list[str], peers: dict[str, str], now: float = 0.0) -> None:
    """All of ``peers`` come, in their order."""
    for who, peer in peers.items():
        strangers.came(who, peer, now, lambda who=who: gone.append(who))  # type: ignore[misc]


def test_the_oldest_of_the_same_address_gives_way() -> None:
    """Others are not touched, and the newest is always let in."""
    gone: list[str] = []
    dropping(Strangers(5, most_of_one=2, most=10), gone, {"a": "x", "b": "y", "c": "x", "d": "x", "e": "y"})
    assert gone == ["a"]


def test_of_too_many_addresses_the_oldest_gives_way() -> None:
    """Whatever its address is."""
    gone: list[str] = []
    dropping(Strangers(5, most_of_one=2, most=3), gone, {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"})
    assert gone == ["a", "b"]


def test_who_is_known_does_not_count_and_is_not_dropped() -> None:
    """However many come after it."""
    gone: list[str] = []
    strangers = Strangers(5, most_of_one=2, most=3)
    dropping(strangers, gone, {"one of us": "x"})
    strangers.left("one of us")
    strangers.left("one of us")
    dropping(strangers, gone, {str(number): "x" for number in range(10)})
    assert gone == [str(number) for number in range(8)]
    assert len(strangers) == 2


def test_who_is_too_late_is_dropped_and_the_next_time_is_returned() -> None:
    """None: no connection waits."""
    gone: list[str] = []
    strangers = Strangers(5)
    assert strangers.sweep(0) is None
    dropping(strangers, gone, {"a": "x"}, now=100)
    dropping(strangers, gone, {"b": "x"}, now=103)
    assert strangers.sweep(104) == 1
    assert gone == []
    assert strangers.sweep(105) == 3
    assert gone == ["a"]
    assert strangers.sweep(1000) is None
    assert gone == ["a", "b"]
