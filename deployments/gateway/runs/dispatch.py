"""Start the playbook of an open incident: create the run, with retries; without Prefect if need be."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from holdfast.deployments.gateway.runs.flow_runs import Runs
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import NoPlaybookError, StaleError, UnavailableError
from holdfast.models.alert import Incident, IncidentState

RETRY_S = 0.25
REGISTERED_S = 30.0
"""`holdfast up` registers deployments one by one, once Prefect answers: until then none is reported as missing."""
ALONE = "it runs without Prefect"
"""Begins an incident's reason for that."""
NO_PLAYBOOK_S = 1.0
"""Time for which a deployment that Prefect lacks may still be on its way (`prefect deploy --all`)."""


class Dispatcher:
    """Starts playbooks in the background, one start per incident at a time."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site = site
        self._runs = runs
        self._busy: set[str] = set()
        self.prefect_away_since: float | None = None
        """For people: Unix seconds."""
        self._away_from = 0.0
        """The same on the monotonic clock."""
        self.lacks: tuple[str, ...] = ()
        """Deployments of playbooks that Prefect does not have."""
        self._lacking_since: float | None = None

    def busy(self, incident_id: str) -> bool:
        """Return whether a start of this incident is under way."""
        return incident_id in self._busy

    def start(self, incident: Incident, alone: str = "") -> None:
        """Start the playbook of the incident's present attempt; returns at once.

        Args:
            incident: as it is now.
            alone: why it is not to run in Prefect; empty: it is.
        """
        if incident.id not in self._busy:
            self._busy.add(incident.id)
            self._site.spawn(self._start(incident, alone), f"dispatch {incident.id}")

    def prefect_answered(self) -> None:
        """Note that Prefect's API answers."""
        self.prefect_away_since = None
        self._site.metrics.prefect_up.set(1)

    def prefect_away(self) -> float:
        """Note that Prefect's API failed just now; return for how many seconds it has been away."""
        now = self._site.clock.monotonic()
        self._site.metrics.prefect_up.set(0)
        if self.prefect_away_since is None:
            self.prefect_away_since, self._away_from = self._site.clock.now(), now
        return now - self._away_from

    async def ping(self) -> None:
        """Check whether Prefect answers before an incident needs it."""
        try:
            self._noted(await self._runs.ping())
        except UnavailableError as error:
            if self.prefect_away() == 0.0:
                log.warning("%s", error)
        else:
            if self.prefect_away_since is not None:
                log.info("Prefect answers")
            self.prefect_answered()

    def _noted(self, lacks: Collection[str]) -> None:
        """Log once which deployments are missing, and once that they are there again."""
        now, at = tuple(sorted(lacks)), self._site.clock.monotonic()
        self._lacking_since = (at if self._lacking_since is None else self._lacking_since) if now else None
        if self._lacking_since is not None and at - self._lacking_since < REGISTERED_S:
            return
        if now and now != self.lacks:
            log.error(
                "Prefect has no deployment of %s: their incidents run without Prefect; run `holdfast up`, or "
                "`prefect deploy --all` where you deploy to a Prefect of your own",
                ", ".join(now),
            )
        elif self.lacks and not now:
            log.info("Prefect has the deployments of all playbooks")
        self.lacks = now
        self._site.metrics.deployments_missing.set(len(now))

    async def _start(self, incident: Incident, alone: str) -> None:
        try:
            # The caller may have read it before another start came to its end: without Prefect it would run twice.
            incident = await asyncio.to_thread(self._site.ledger.incident, incident.id)
            if incident.state is not IncidentState.OPEN or incident.flow_run_id is not None:
                return
            run_id = await (self._offline(incident, alone) if alone else self._create(incident))
            if run_id is not None:
                await asyncio.to_thread(self._site.ledger.set_incident, incident.id, flow_run_id=run_id)
        except StaleError as error:
            log.info("%s: not started: %s", incident.id, error)
        finally:
            self._busy.discard(incident.id)

    async def _create(self, incident: Incident) -> str | None:
        """Return the id of the run; None when the incident was closed meanwhile."""
        site = self._site
        began = site.clock.monotonic()
        patience = min(NO_PLAYBOOK_S, site.policy.gateway.offline_after_s)
        while True:
            try:
                run_id = await self._runs.create(incident)
            except NoPlaybookError as error:
                self.prefect_answered()
                if site.clock.monotonic() - began >= patience:
                    return await self._offline(incident, str(error))
            except UnavailableError as error:
                away_s = self.prefect_away()
                log.warning("%s: %s (for %.1f s)", incident.id, error, away_s)
                if away_s >= site.policy.gateway.offline_after_s:
                    return await self._offline(incident, str(error))
            else:
                self.prefect_answered()
                site.metrics.dispatch_s.observe(max(0.0, site.clock.now() - incident.opened_at))
                return run_id
            await site.clock.sleep(RETRY_S)
            incident = await asyncio.to_thread(site.ledger.incident, incident.id)
            if incident.state is not IncidentState.OPEN:
                return None

    async def _offline(self, incident: Incident, why: str) -> str:
        reason = f"{ALONE}: {why}"
        if reason not in incident.reasons:
            reasons = [*incident.reasons, reason]
            await asyncio.to_thread(self._site.ledger.set_incident, incident.id, reasons=reasons)
        # A request that timed out may yet have made a run: a new attempt fences it.
        newer = await asyncio.to_thread(self._site.ledger.next_attempt, incident.id, incident.attempt)
        run_id = await self._runs.offline(newer)
        self._site.metrics.offline.inc()
        log.warning("%s: attempt %d runs without Prefect (%s)", newer.id, newer.attempt, run_id)
        return run_id
