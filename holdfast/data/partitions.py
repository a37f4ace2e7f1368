"""Partitions by day and hour, read from paths. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from itertools import chain
from typing import Literal

from holdfast.data.files import File
from holdfast.errors import SettingsError

By = Literal["hour", "day"]

_DAY = re.compile(r"(?:^|[/=_-])(\d{4})(?:-(\d\d)-|/(\d\d)/|(\d\d))(\d\d)(?=$|[/_T.-])")
_HIVE = {
    name: re.compile(rf"(?:^|/){name}=(\d+)(?=/|$)", re.IGNORECASE)
    for name in ("year", "month", "day", "hour")
}
_HOUR = re.compile(r"^(?:/(?:hour=|hr=|h=)?|[T_-])(\d\d)(?=$|[/_.:-])", re.IGNORECASE)


def partition_of(path: str) -> datetime | None:
    """Return the hour that a path names, hour 0 where it names only a day; None: it names no day.

    Known: ``dt=2026-11-24/hour=05``, ``2026/11/24/05``, ``2026-11-24T05``, ``20261124/05``, and
    ``year=2026/month=11/day=24/hour=5``.
    """
    hive = {name: found for name, pattern in _HIVE.items() if (found := pattern.search(path))}
    if {"year", "month", "day"} <= hive.keys():
        return _made(path, *(int(hive[name][1]) if name in hive else 0 for name in _HIVE))
    for found in _DAY.finditer(path):
        year, day = int(found[1]), int(found[5])
        month = int(found[2] or found[3] or found[4])
        if 1 <= month <= 12 and 1 <= day <= 31 and year >= 1900:
            hour = _HOUR.match(path[found.end() :])
            if "hour" in hive:
                hour = hive["hour"]
            return _made(path, year, month, day, int(hour[1]) if hour and int(hour[1]) < 24 else 0)
    return None


def placed(files: Iterable[File]) -> list[File]:
    """Return the files with their partitions."""
    return [replace(each, partition=partition_of(each.path)) for each in files]


def between(first: str, last: str) -> Callable[[File], bool]:
    """Return a filter: files of partitions from ``first`` to before ``last`` (ISO dates, with or without hours).

    Raises:
        SettingsError: one of them is no date.
    """
    low, high = _parsed(first), _parsed(last)
    return lambda file: file.partition is not None and low <= file.partition < high


def aligned(
    listed: Mapping[str, Sequence[File]], known: Mapping[str, Sequence[File]], by: By = "hour"
) -> dict[str, list[File]]:
    """Return the files of those partitions that every source has; ``known`` are those listed before.

    Files that name no partition are left out.
    """
    have = [
        {_counted(each.partition, by) for each in (*files, *known.get(name, ()))}
        for name, files in listed.items()
    ]
    common = set.intersection(*have) - {None} if have else set()
    return {
        name: [each for each in files if _counted(each.partition, by) in common]
        for name, files in listed.items()
    }


def closed(files: Sequence[File], by: By = "hour") -> list[File]:
    """Return the files of partitions after which there is a later one, and those without a partition."""
    latest = max((each.partition for each in files if each.partition), default=None)
    return [
        each
        for each in files
        if each.partition is None or _counted(each.partition, by) != _counted(latest, by)
    ]


def windows(files: Sequence[File], by: By, size: int) -> list[list[int]]:
    """Return the files (by number) in windows of ``size`` partitions, in order of time; those without a time first.

    Args:
        files: to be put into windows.
        by: what counts as one partition.
        size: partitions of a window.
    """
    partitions: dict[datetime, list[int]] = {}
    for number in sorted(range(len(files)), key=lambda at: files[at].path):
        when = files[number].partition or datetime.min
        partitions.setdefault(_counted(when, by) or when, []).append(number)
    row = [partitions[when] for when in sorted(partitions)]
    return [list(chain.from_iterable(row[at : at + size])) for at in range(0, len(row), size)]


def _counted(when: datetime | None, by: By) -> datetime | None:
    """Return the partition that a time belongs to."""
    return when.replace(hour=0) if when and by == "day" else when


def _parsed(text: str) -> datetime:
    try:
        when: datetime | None = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is not None:  # paths name no time zone
        raise SettingsError(
            f"between({text!r}): expected a date such as 2026-11-24 or 2026-11-24T05, without a time zone"
        )
    return when


def _made(path: str, year: int, month: int, day: int, hour: int) -> datetime:
    try:
        date(year, month, day)
        return datetime(year, month, day, hour)
    except ValueError as error:
        raise SettingsError(f"{path}: its path names no partition: {error}") from None
