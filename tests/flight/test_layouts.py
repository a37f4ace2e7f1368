"""Recordings of PyTorch's own parallel libraries: the culprit is named and no innocent, also where parts miss."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.flight.labels import labels
from tests.flight.verdict import recorded

LABELS = labels("layouts")
HANGING = [name for name, label in LABELS.items() if label["faults"]]


def machines(name: str, of: str) -> set[str]:
    return {f"m{rank // LABELS[name]['per']}" for rank in LABELS[name].get(of, ())}


@pytest.mark.parametrize("name", LABELS)
def test_the_culprit_is_named_and_no_other(name: str) -> None:
    """Of stacks and recordings together."""
    named = recorded(name, LABELS[name]).suspects()
    if guilty := machines(name, "guilty"):
        assert named == guilty
    else:
        assert named <= machines(name, "may")


@pytest.mark.parametrize("name", HANGING)
@pytest.mark.parametrize("missing", ["stacks", "records", "both"])
def test_no_machine_is_named_for_what_is_not_known_of_another(name: str, missing: str) -> None:
    """Where nothing can be had of one rank or two, it may be they; no other machine is named than the culprit's."""
    known = recorded(name, LABELS[name])
    ranks = sorted({dump.rank for dump in known.dumps if dump.rank is not None})
    right = machines(name, "guilty") | machines(name, "may")
    for lost in (*combinations(ranks, 1), *combinations(ranks, 2)):
        part = known.without(lost if missing != "records" else (), lost if missing != "stacks" else ())
        absent = {f"m{rank // LABELS[name]['per']}" for rank in lost}
        assert part.suspects() <= right | absent, lost
