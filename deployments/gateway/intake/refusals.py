"""Machines that a person keeps: whether what is reported of one was known when its eviction was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.deployments.gateway.site import Site
from holdfast.models.alert import Alert, Classification, IncidentClass
from holdfast.policies.escalate import refused

_LOOK_BACK = 20
"""Incidents of the job, newest first."""


async def why_watched(site: Site, job: str, found: Classification, alerts: Sequence[Alert]) -> str:
    """Return why nothing is done about the machine at fault; empty: it is acted on."""
    asks = site.policy.approval.rules and found.incident_class is IncidentClass.MACHINE_FAULT
    return await asyncio.to_thread(_look, site, job, alerts) if asks else ""


def _look(site: Site, job: str, alerts: Sequence[Alert]) -> str:
    ledger, now = site.ledger, site.clock.now()
    for past in ledger.incidents(job, limit=_LOOK_BACK):
        if past.incident_class is not IncidentClass.MACHINE_FAULT:
            continue
        person = refused.by_whom(ledger.actions(past.id, "approve"))
        if person and refused.covers(past, alerts, now, site.policy.classify):
            return f"{person} refused the eviction for it in {past.id}: the machine is watched"
    return ""
