"""The opening of an incident: its alerts, the end of what gives way to it, its playbook's start, its records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from holdfast.deployments.gateway.fleet.facts import Facts, give_way
from holdfast.deployments.gateway.intake.correlation_window import CorrelationWindow
from holdfast.deployments.gateway.intake.deduplicator import Deduplicator
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.intake.signs import injected_at
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import StaleError
from holdfast.models.alert import BESIDE_TRAINING, MACHINE_KINDS, Alert, Classification, Incident
from holdfast.policies.classify import exits
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.ended import after_others
from holdfast.policies.escalate import overtake
from holdfast.policies.restore import last_good
from holdfast.storage.ledger.inputs import OPENED

AT_OPENING = 16
"""Alerts written with a new incident, roots first; the others follow while its playbook starts."""


class Starter(Protocol):
    """Starts the playbook of an incident, in the background."""

    def start(self, incident: Incident) -> None:
        """Start the playbook; returns at once."""
        ...


class Opening:
    """Opens incidents; their playbooks go to ``starter``."""

    def __init__(self, site: Site, starter: Starter, memory: Deduplicator) -> None:
        self._site = site
        self._starter = starter
        self._memory = memory

    async def open(
        self,
        facts: Facts,
        settling: CorrelationWindow,
        found: Classification,
        earlier: Sequence[Alert],
        context: JobContext,
    ) -> Outcome:
        """Open the incident that the policy found, with the alerts that waited and those noted ``earlier``.

        Raises:
            StaleError: what it was to take the place of ended meanwhile.
            UnavailableError: the ledger does not answer; nothing was opened.
        """
        site, job = self._site, facts.job
        if found.incident_class not in BESIDE_TRAINING:
            await asyncio.to_thread(give_way, site.ledger, job.name, found.incident_class, context.now)
            facts = facts.of_what_stops()
        ended = (facts.yields.id, overtake.handed_over(facts.yields, found)) if facts.yields else None
        # What was noted earlier without acting on it is part of the story: it may have decided the class.
        alerts = [*sorted(settling.alerts.values(), key=exits.is_cascade), *earlier]
        alerts = [after_others(alert, context) for alert in alerts]
        first, rest = alerts[:AT_OPENING], alerts[AT_OPENING:]
        incident = await asyncio.to_thread(
            site.ledger.open_incident,
            job.name,
            found,
            job.epoch,
            first,
            settling.detected_at,
            injected_at(alerts),
            last_good_step=await self._bound_of(facts.yields),
            instead_of=ended,
        )
        for alert in alerts:
            self._memory.take(alert.key, incident.id)
        what = What.WAITS if facts.acting else What.OPENED
        if facts.acting is None:
            self._starter.start(incident)
        site.metrics.incidents.labels(incident.incident_class).inc()
        site.metrics.accept_s.observe(site.clock.now() - settling.detected_at)
        log.info(
            "%s: %s of %s (%s)", incident.id, incident.incident_class, job.name, "; ".join(found.reasons)
        )
        site.spawn(self._note(incident.id, what, first, rest, context), f"record {incident.id}")
        return Outcome(incident=incident.id, outcome=what)

    async def noted_by(self, yields: Incident | None) -> list[Alert]:
        """Return the alerts about machines of an incident that yields: evidence beside what ends it."""
        if yields is None:
            return []
        whole = await asyncio.to_thread(self._site.ledger.incident, yields.id)
        return [alert for alert in whole.alerts if alert.kind in MACHINE_KINDS]

    async def _bound_of(self, yields: Incident | None) -> int | None:
        """Return the newest step that may be restored, as an incident that yields knows it; None: no bound."""
        if yields is None:
            return None
        whole = await asyncio.to_thread(self._site.ledger.incident, yields.id)
        return last_good.bound(whole.alerts, whole.last_good_step, by_hand=False)

    async def _note(
        self,
        incident_id: str,
        what: What,
        first: Sequence[Alert],
        rest: Sequence[Alert],
        context: JobContext,
    ) -> None:
        """Write the records that the playbook's start need not wait for."""
        went_by = {
            "context": context.model_dump(mode="json"),
            "alerts": [each.key for each in (*first, *rest)],
        }
        await asyncio.to_thread(self._site.ledger.note_input, incident_id, OPENED, went_by)
        if rest:
            with contextlib.suppress(StaleError):
                await asyncio.to_thread(self._site.ledger.join, incident_id, rest)
        for alert in (*first, *rest):
            await asyncio.to_thread(self._site.ledger.record_alert, alert, incident_id, what)
