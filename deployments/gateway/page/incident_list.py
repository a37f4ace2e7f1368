"""Incidents, newest first, of all that the ledger has: filtered, and so many at once."""

from __future__ import annotations

from typing import Any

from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.page.overview import incident_line
from holdfast.models.alert import IncidentState
from holdfast.models.classes import IncidentClass


def incident_list(
    gateway: Gateway,
    *,
    job: str | None,
    machine: str | None,
    incident_class: IncidentClass | None,
    state: IncidentState | None,
    limit: int,
) -> dict[str, Any]:
    """Return the view. Blocks for the ledger.

    ``count``: how many incidents there are by these filters; ``classes`` and ``states``: which ones to choose from.
    """
    ledger = gateway.site.ledger
    counts = ledger.incident_counts(job, machine)
    found = ledger.incidents(
        job, state, limit, incident_class=incident_class, machine=machine, evidence=False
    )
    return {
        "incidents": [incident_line(row) for row in found],
        "count": sum(
            count
            for (of_class, of_state), count in counts.items()
            if incident_class in (None, of_class) and state in (None, of_state)
        ),
        "classes": sorted({of_class.value for of_class, _ in counts}),
        "states": sorted({of_state.value for _, of_state in counts}),
    }
