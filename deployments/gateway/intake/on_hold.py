"""Signals about jobs that a person holds: kept, shown, and taken once the hold ends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.intake.outcome import What
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.alert import Alert
from holdfast.models.job import ENDED, Job, JobState
from holdfast.policies.classify import sure_signs

PER_JOB = 64
_OVER = "over while its job was held"
LOOK_BACK = 1000
"""Recorded alerts, newest first, among which a new gateway looks for those that its predecessor kept."""


class OnHold:
    """The kept signals of each job, the oldest first. Bounded; the ledger has them in its alert log too."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._kept: dict[str, OrderedDict[str, Alert]] = {}

    def keep(self, alert: Alert) -> bool:
        """Keep a signal of the present; returns whether it is new."""
        kept = self._kept.setdefault(alert.job or "", OrderedDict())
        if alert.key in kept or len(kept) >= PER_JOB:
            return False
        kept[alert.key] = alert
        return True

    def over(self, alert: Alert) -> None:
        """Forget what a monitor reports as over."""
        for job, kept in self._kept.items():
            for key in [key for key, each in kept.items() if _of_one_fault(each, alert)]:
                del kept[key]
                resolved = alert.model_copy(update={"job": job})
                noted = asyncio.to_thread(self._site.ledger.record_alert, resolved, None, _OVER)
                self._site.spawn(noted, f"over while held {alert.key}")

    def describe(self, job: str) -> list[str]:
        """Describe the signals that wait for the end of the hold."""
        return [
            f"{alert.machine or 'the job'}: {sure_signs.describe(alert)}" for alert in self._of(job).values()
        ]

    async def tick(self) -> None:
        """Take the signals of jobs whose hold is over."""
        for name in list(self._kept):
            job = await self._site.job(name)
            if job.state is JobState.PAUSED:
                continue
            if job.state in ENDED:
                del self._kept[name]
            else:
                await self._take(name)

    async def end(self, job: Job) -> bool:
        """Take the signals before a person's resume lets the ranks go; returns whether an incident has the job now."""
        if not self._of(job.name):
            return False
        self._correlator.ending.add(job.name)
        try:
            await self._take(job.name)
        finally:
            self._correlator.ending.discard(job.name)
        return await asyncio.to_thread(self._site.ledger.acting, job.name, evidence=False) is not None

    async def resume(self) -> None:
        """Load what an earlier gateway kept."""
        ledger, held_since = self._site.ledger, dict[str, float | None]()
        for recorded in reversed(await asyncio.to_thread(ledger.alerts, None, LOOK_BACK)):
            if not recorded.job or not recorded.outcome.startswith((What.KEPT, _OVER)):
                continue
            if recorded.outcome == _OVER:
                kept = self._of(recorded.job)
                for key in [key for key, each in kept.items() if _of_one_fault(each, recorded)]:
                    del kept[key]
                continue
            if recorded.job not in held_since:
                changes = await asyncio.to_thread(ledger.state_changes, recorded.job)
                held = bool(changes) and changes[-1].state is JobState.PAUSED
                held_since[recorded.job] = changes[-1].at if held else None
            since = held_since[recorded.job]
            # Not those of an earlier hold, which were taken when it ended.
            if since is not None and since <= recorded.recorded_at:
                self.keep(Alert.model_validate(recorded.model_dump(include=set(Alert.model_fields))))

    async def _take(self, name: str) -> None:
        kept = self._kept.get(name, OrderedDict())
        while kept:
            # One that the ledger cannot take now stays for the next round.
            key = next(iter(kept))
            (outcome,) = await self._correlator.accept_all([kept[key]])
            kept.pop(key, None)
            log.info("%s: kept while it was held: %s %s", name, outcome.outcome, outcome.message)
        self._kept.pop(name, None)

    def _of(self, job: str) -> OrderedDict[str, Alert]:
        return self._kept.get(job, OrderedDict())


def _of_one_fault(one: Alert, other: Alert) -> bool:
    """Return whether ``other`` is the end of ``one``: of that device, if it names one, in that life of its machine."""
    named = [name for name in ("check", "device") if name in other.evidence]
    return (
        other.machine is not None
        and (one.kind, one.machine) == (other.kind, other.machine)
        and (not one.incarnation or other.incarnation in (None, one.incarnation))
        and all(one.evidence.get(name) == other.evidence[name] for name in named)
    )
