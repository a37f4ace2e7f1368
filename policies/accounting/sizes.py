"""Sizes of a job over its life: the share of its wanted machines that each epoch ran on, and the reason.

The wanted size is the job file's, until a person or a schedule asks for another one: a size by wish loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class SizedEpoch(Protocol):
    """The fields of :class:`~holdfast.models.history.Epoch` that are needed here."""

    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def incident_id(self) -> str | None: ...  # noqa: D102
    @property
    def opened_at(self) -> float: ...  # noqa: D102
    @property
    def machines(self) -> Sequence[str]: ...  # noqa: D102


class Resize(Protocol):
    """The fields of :class:`~holdfast.models.history.Action` that are needed here."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def done_at(self) -> float | None: ...  # noqa: D102
    @property
    def result(self) -> Mapping[str, Any]: ...  # noqa: D102


class Share(NamedTuple):
    """How much of the wanted machines an epoch ran on."""

    share: float = 1.0
    cause: str = ""
    """Class of the incident that took the others; empty: none did."""


def shares(
    epochs: Sequence[SizedEpoch], actions: Sequence[Resize], causes: Mapping[str, str], want: int
) -> dict[int, Share]:
    """Return the share of each epoch.

    Args:
        epochs: by number.
        actions: of all incidents; those of kind ``resize`` show which size was wanted when.
        causes: incident id to class.
        want: machines that the job wants now; 0: unknown, all epochs count in full.
    """
    wishes = sorted(
        (row.done_at, int(row.result["to"]), int(row.result["want"]))
        for row in actions
        if row.kind == "resize" and row.done_at is not None and row.result.get("want")
    )
    first = wishes[0][2] if wishes else want
    found: dict[int, Share] = {}
    before = Share()
    for row in epochs:
        wished = next((to for at, to, _ in reversed(wishes) if at <= row.opened_at), first)
        share = min(1.0, len(row.machines) / wished) if wished and row.machines else 1.0
        if share >= 1.0:
            before = Share()
        elif share < before.share:
            before = Share(share, causes.get(row.incident_id or "", ""))
        else:
            before = Share(share, before.cause)
        found[row.epoch] = before
    return found
