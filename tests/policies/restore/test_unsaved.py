"""One line for each place where a job's saves fail."""

from __future__ import annotations

from holdfast.models.setback import Place, Setback
from holdfast.policies.restore.unsaved import unsaved


def setback(place: Place, since: float, reason: str, count: int = 1) -> Setback:
    return Setback(place=place, count=count, since=since, reason=reason)


def test_a_job_that_saves_everywhere_has_nothing_to_say() -> None:
    """Also one without machines."""
    assert unsaved({}) == unsaved({"m0": (), "m1": ()}) == ()


def test_machines_with_the_same_trouble_are_one_line() -> None:
    """A few by name, the others by number; places apart, the first tier first."""
    full = [setback(Place.DISK, 10.0 + number, f"reason {number}", 2) for number in range(5)]
    reports = {f"m{number}": (each,) for number, each in enumerate(full)}
    reports["m1"] += (setback(Place.SAVE, 7.0, "no memory"),)
    save, disk = unsaved(reports)
    assert (save.place, save.machines, save.since) == (Place.SAVE, ("m1",), 7.0)
    assert save.told == "NOT SAVED: saves fail on m1 (1 since the last good one): no memory"
    assert (disk.count, disk.since) == (10, 10.0)
    assert disk.told == (
        "NOT SAVED: copies to the disk fail on m0, m1, m2 and 2 more (10 since the last good one): reason 4"
    )
