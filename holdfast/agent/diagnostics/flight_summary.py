"""Summarise one rank's flight recording: how far it came in each process group.

Groups are identified by name, backend and members. The counters that a recording holds beside its entries
(``pg_status``) are numbered as each process made its groups, and mean nothing to another process.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.models.agent import FlightRecord
from holdfast.models.base import MOST_STEPS

RECENT = 8
"""Operations that are reported of each group."""
_MEMBERS = re.compile(r"\[\s*(\d{1,9}(\s*,\s*\d{1,9})*)?\s*\]")
_POINTS = re.compile(r"(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
_EQUAL_SIZES = frozenset({"all_reduce", "broadcast", "reduce"})
_MOST_RANKS = 1 << 20
_Entry = Mapping[str, Any]
_Key = tuple[str, str]
"""Backend and name of a group."""


def summarise(
    rank: int, recording: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]] | None = None
) -> list[FlightRecord]:
    """Return how far ``rank`` came in each group of one recording.

    Args:
        rank: the rank that the recording belongs to.
        recording: as PyTorch dumps it, from any source.
        groups: members by the group's name, where the recording has none.
    """
    listed = recording.get("entries")
    entries = (
        [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, (list, tuple)) else []
    )
    members = _configured(recording) | dict(groups or {})
    timed = any(_number(entry.get("time_discovered_started_ns")) > 0 for entry in entries)
    by_group: dict[_Key, list[_Entry]] = defaultdict(list)
    for entry in entries:
        by_group[_backend(entry), _name(entry)].append(entry)
    found = [_record(rank, key, own, members.get(key[1], ()), timed) for key, own in by_group.items()]
    if not _wrapped(entries):
        recorded = {name for _, name in by_group}
        found += [
            FlightRecord(rank=rank, group=name, ranks=ranks, enqueued=-1, completed=-1)
            for name, ranks in members.items()
            if name not in recorded
        ]
    return found


def _record(
    rank: int, key: _Key, entries: Sequence[_Entry], ranks: tuple[int, ...], timed: bool
) -> FlightRecord:
    done: dict[int, bool] = {}
    started, recent, newest = -1, {}, ""
    for entry in entries:
        number = _number(entry.get("collective_seq_id"))
        if entry.get("is_p2p") or number < 0:
            continue
        # Operations that were launched together share a number: it is complete when all of them are.
        done[number] = done.get(number, True) and _done(entry)
        if _number(entry.get("time_discovered_started_ns")) > 0 or done[number]:
            started = max(started, number)
        newest = _text(entry.get("profiling_name"))[:100]
        recent[number] = _operation(entry)
    pending = [number for number, over in done.items() if not over]
    points = _waits_in(entries)
    return FlightRecord(
        rank=rank,
        group=key[1],
        ranks=ranks,
        backend=key[0],
        enqueued=max(done, default=-1),
        started=started if timed else None,
        completed=min(pending) - 1 if pending else max(done, default=-1),
        operation=newest,
        recent={number: recent[number] for number in _kept(recent, pending)},
        sending=bool(points),
        peers=_peers(points, rank, ranks),
    )


def _kept(recent: Mapping[int, str], pending: Sequence[int]) -> list[int]:
    """Return the newest operations, and the oldest that is not complete."""
    return sorted({*sorted(recent)[-RECENT:], *sorted(pending)[:1]})


def _operation(entry: _Entry) -> str:
    _, _, name = _text(entry.get("profiling_name")).partition(":")
    return f"{name} {_sizes(entry.get('input_sizes'))}" if name in _EQUAL_SIZES else name[:60]


def _sizes(lists: object) -> str:
    if not isinstance(lists, (list, tuple)):
        return ""
    flat = [each for sizes in lists[:4] if isinstance(sizes, (list, tuple)) for each in sizes[:8]]
    return "x".join(str(each) for each in flat if isinstance(each, int))[:60]


def _done(entry: _Entry) -> bool:
    """Return whether it is complete. NCCL also retires what timed out; the others note only that (torch 2.13)."""
    if _backend(entry) == "gloo":
        return entry.get("retired") is True or entry.get("state") == "completed"
    return entry.get("state") == "completed"


def _waits_in(entries: Sequence[_Entry]) -> list[_Entry]:
    """Return the newest point-to-point operations, if they are not complete.

    Of those that were launched together only the launch (``coalesced``) has a state; the others never end.
    """
    points = [entry for entry in entries if entry.get("is_p2p")]
    newest = max((_number(entry.get("p2p_seq_id")) for entry in points), default=-1)
    last = [entry for entry in points if _number(entry.get("p2p_seq_id")) == newest]
    launches = [entry for entry in last if _text(entry.get("profiling_name")).endswith("coalesced")]
    return [] if all(_done(entry) for entry in launches or last) else last


def _peers(points: Iterable[_Entry], rank: int, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the global ranks of those at the other ends: a recording numbers them within their group."""
    found: set[int] = set()
    for entry in points:
        if named := _POINTS.search(_text(entry.get("profiling_name"))):
            ends = {int(end) for end in named.groups()}
            found |= {ranks[end] for end in ends if end < len(ranks)}
    return tuple(sorted(found - {rank}))


def _wrapped(entries: Sequence[_Entry]) -> bool:
    """Return whether older entries were overwritten: then missing ones were not necessarily never issued."""
    return bool(entries) and min(_number(entry.get("record_id")) for entry in entries) > 0


def _backend(entry: _Entry) -> str:
    return _text(entry.get("profiling_name")).partition(":")[0][:20]


def _name(entry: _Entry) -> str:
    named = entry.get("process_group")
    return _text(named[0] if isinstance(named, (list, tuple)) and named else entry.get("pg_id"))


def _text(value: object) -> str:
    """Return text only of plain values: lists may hold one another so often that no memory has room for their text."""
    return str(value)[:1000] if isinstance(value, (str, int, float)) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MOST_STEPS else -1


def _configured(recording: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return members by the group's name; gloo notes one entry without name or members (torch 2.13)."""
    config = recording.get("pg_config")
    groups = config.items() if isinstance(config, Mapping) else ()
    return {_text(name): _members(each) for name, each in groups if isinstance(each, Mapping) and name != ""}


def _members(group: Mapping[str, Any]) -> tuple[int, ...]:
    ranks = group.get("ranks")
    if not isinstance(ranks, str) or not _MEMBERS.fullmatch(ranks):
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", ranks))


def members(groups: object) -> dict[str, tuple[int, ...]]:
    """Return members by the group's name, as :mod:`holdfast.agent.ranks.flight_thread` writes them."""
    listed = groups if isinstance(groups, list) else []
    return {
        _text(each.get("name")): tuple(rank for rank in each["ranks"] if _number(rank) in range(_MOST_RANKS))
        for each in listed
        if isinstance(each, Mapping) and isinstance(each.get("ranks"), list)
    }
