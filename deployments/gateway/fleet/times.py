"""Time accounting of the site's jobs: ETTR and lost time, for people and for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from prometheus_client import Gauge

from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.site import Site
from holdfast.errors import UnknownError
from holdfast.models.job import Job
from holdfast.policies.accounting import ettr
from holdfast.policies.accounting.ettr import Ettr

Rows = frozenset[tuple[str, str]]
"""Phases and incident classes of a job's lost time."""
SHARE = 10.0
"""A job's account is made again after this many times as long as it took: that of years takes seconds."""
LATE_S = 60.0
"""Steps of a job that has ended may be written so long after its end."""


def measured(site: Site, job: Job) -> tuple[Ettr, Ettr]:
    """Return the job's ETTR since its submission, and in the policy's sliding window. Blocks for the ledger."""
    history = site.ledger.history(job.name)
    now = job.done_at or site.clock.now()
    return ettr.measure(history, now), ettr.sliding(history, now, site.policy.ettr.window_s)


def of(site: Site, job: Job) -> dict[str, Any]:
    """Return the job's ETTR and its account as plain values; seconds. Of a job that ended it is computed once."""
    life = (job.submitted_at, job.done_at)
    if (known := site.accounts.get(job.name)) is not None and known[0] == life:
        return dict(known[1])
    found = _values(site, job)
    if _is_over(job, site.clock.now()):
        site.accounts[job.name] = life, found
    return dict(found)


def _is_over(job: Job, now: float) -> bool:
    """Return whether its account changes no more."""
    return job.done_at is not None and abs(now - job.done_at) > LATE_S


def _values(site: Site, job: Job) -> dict[str, Any]:
    total, window = measured(site, job)
    account = total.account
    return {
        "ettr": None if total.unmeasured else round(total.ettr, 4),
        "ettr_window": None if window.unmeasured else round(window.ettr, 4),
        "ettr_note": total.unmeasured,
        "window_s": site.policy.ettr.window_s,
        "wall_s": total.wall_s,
        "productive_s": total.productive_s,
        "scaled_to_zero_s": total.zero_s,
        "worst_gap_s": total.worst_gap_s,
        "restarts": total.restarts,
        "steps_recomputed": total.steps_recomputed,
        "lost_by_phase_s": account.by_phase(),
        "lost_by_class_s": account.by_class(),
        "lost": [
            {"phase": row.phase, "incident_class": row.cause, "seconds": row.seconds} for row in account.lost
        ],
    }


class Times:
    """Keeps the metrics of every job's time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._final: dict[str, tuple[float, float | None]] = {}
        """Jobs whose account is complete: when they were submitted, and when they ended."""
        self._rows: dict[str, Rows] = {}
        self._due: dict[str, float] = {}
        """When the account of a job that runs is made again at the earliest, by a clock that is never set."""

    def resume(self) -> None:
        """Show all jobs again: while another gateway led, nothing was shown here."""
        self._final.clear()
        self._due.clear()

    async def tick(self) -> None:
        """Recompute the accounting of every job."""
        now = self._site.clock.now()
        self._due = {name: at for name, at in self._due.items() if name in self._site.fleet.jobs}
        for job in list(self._site.fleet.jobs.values()):
            life = (job.submitted_at, job.done_at)
            over = _is_over(job, now)
            if over and self._final.get(job.name) == life:
                continue  # its account changes no more, and a ledger of years has thousands of them
            began = self._site.clock.monotonic()
            if not over and began < self._due.get(job.name, 0.0):
                continue
            try:
                total, window = await asyncio.to_thread(measured, self._site, job)
            except UnknownError:
                continue
            ended = self._site.clock.monotonic()
            self._due[job.name] = ended + SHARE * (ended - began)
            before = self._rows.get(job.name, frozenset())
            # Of a job that has ended the last hour means nothing: low for ever, it would page people for ever.
            self._rows[job.name] = publish(
                self._site.metrics, job.name, total, None if over else window, before
            )
            if over:
                self._final[job.name] = life


def publish(metrics: Metrics, job: str, total: Ettr, window: Ettr | None, before: Rows = frozenset()) -> Rows:
    """Set the gauges of one job; those of lost time that its account has no more are removed.

    ``before``: rows of its lost time that are shown. Returns those that are shown now.
    """
    # Where it is not measured, 0 would page people for a job that trains well.
    for name, each in (("total", total), ("window", window)):
        if each is None or each.unmeasured:
            _remove(metrics.job_ettr, job, name)
        else:
            metrics.job_ettr.labels(job, name).set(each.ettr)
    metrics.job_wall_s.labels(job).set(total.wall_s)
    metrics.job_productive_s.labels(job).set(total.productive_s)
    metrics.job_zero_s.labels(job).set(total.zero_s)
    rows = {(row.phase.value, row.cause or "none"): row.seconds for row in total.account.lost}
    for gone in before - rows.keys():
        _remove(metrics.job_lost_s, job, *gone)
    for (phase, cause), seconds in rows.items():
        metrics.job_lost_s.labels(job, phase, cause).set(seconds)
    return frozenset(rows)


def _remove(gauge: Gauge, *labels: str) -> None:
    with contextlib.suppress(KeyError):  # of older releases of the client, where it is not there
        gauge.remove(*labels)
