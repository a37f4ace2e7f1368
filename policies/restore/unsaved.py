"""Unsaved state of a job at present: one line for each place whose saves fail, from its machines' reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.models.base import Frozen
from holdfast.models.setback import Place, Setback

_NAMED = 3
_WHAT = {Place.SAVE: "saves", Place.DISK: "copies to the disk", Place.S3: "uploads to S3"}


class Unsaved(Frozen):
    """Failing saves to one place."""

    place: Place
    machines: tuple[str, ...]
    count: int
    """Failures on all machines, since the last good save there."""
    since: float
    """When the first of them failed, Unix seconds of the machine's clock."""
    told: str
    """``NOT SAVED: copies to the disk fail on m0 (3 since the last good one): REASON``."""


def unsaved(reports: Mapping[str, Sequence[Setback]]) -> tuple[Unsaved, ...]:
    """Sum up the machines' reports on the job's present epoch, by name."""
    places = {place: _at(place, reports) for place in Place}
    return tuple(_summed_up(place, found) for place, found in places.items() if found)


def _at(place: Place, reports: Mapping[str, Sequence[Setback]]) -> dict[str, Setback]:
    return {name: each for name, every in sorted(reports.items()) for each in every if each.place is place}


def _summed_up(place: Place, found: Mapping[str, Setback]) -> Unsaved:
    names, count = list(found), sum(each.count for each in found.values())
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    newest = max(found.values(), key=lambda each: each.since)
    summary = (
        f"NOT SAVED: {_WHAT[place]} fail on {', '.join(names[:_NAMED])}{more} "
        f"({count} since the last good one): {newest.reason}"
    )
    return Unsaved(
        place=place,
        machines=tuple(names),
        count=count,
        since=min(each.since for each in found.values()),
        told=summary,
    )
