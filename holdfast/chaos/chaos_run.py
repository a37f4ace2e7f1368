"""A run of chaos: strike by the plan, watch, let the job settle, compare, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from holdfast.chaos import report as reports
from holdfast.chaos.clean_run import Reference, why_differ
from holdfast.chaos.fault_plan import COSTLY, Strike
from holdfast.chaos.report import ChaosReport
from holdfast.chaos.strike import Hit, Striker
from holdfast.chaos.watch import JobWatch
from holdfast.client.gateway import Gateway
from holdfast.deployments.local.services import embedded
from holdfast.errors import HoldfastError
from holdfast.models.alert import IncidentState
from holdfast.models.machine import MachineState
from holdfast.policies.accounting import ettr
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

_POLL_S = 0.2
Struck = tuple[Strike, tuple[Hit, ...]]


@dataclass(frozen=True)
class WantedRun:
    """The requested run."""

    job: str
    seed: int
    plan: Sequence[Strike]
    settle_s: float
    """How long the job may take to recover from the last strike, and to end where that is waited for."""
    repair: bool = True
    """Machines that were faulted and evicted are released again, as after a repair."""
    reference: Reference | None = None


class ChaosRun:
    """One run on one site."""

    def __init__(self, settings: Settings, wanted: WantedRun, say: Callable[[str], None]) -> None:
        self._settings, self._wanted, self._say = settings, wanted, say
        self._struck: list[Struck] = []
        self._reported: set[str] = set()

    def play(self) -> ChaosReport:
        """Run the whole plan. Ctrl-C ends the strikes, not the report."""
        with closing(Ledger(self._settings.database)) as ledger:
            services = embedded(self._settings)
            with closing(JobWatch(self._settings, ledger, self._wanted.job, services)) as watch:
                begun = time.time()
                watch.look()
                try:
                    with Striker(self._settings) as striker:
                        self._strike_all(striker, watch, ledger, begun)
                        self._settle(watch, ledger)
                except KeyboardInterrupt:
                    self._say("interrupted: stopped processes continue")
                return self._report(ledger, watch, begun)

    def _strike_all(self, striker: Striker, watch: JobWatch, ledger: Ledger, begun: float) -> None:
        for strike in self._wanted.plan:
            while time.time() < begun + strike.at_s:
                self._look(watch, ledger)
            if watch.is_over():
                self._say(f"{time.time() - begun:5.0f} s  the job is {watch.job.state}: no more faults")
                return
            hits = tuple(
                self._strike(striker, watch, ledger, strike, number) for number in range(len(strike.faults))
            )
            self._struck.append((strike, hits))
            for hit in hits:
                what = hit.where if hit.fired else f"did not fire: {hit.why}"
                self._say(f"{time.time() - begun:5.0f} s  step {watch.seen[-1].step}: {hit.fault}  {what}")

    def _strike(self, striker: Striker, watch: JobWatch, ledger: Ledger, strike: Strike, number: int) -> Hit:
        fault = strike.faults[number]
        if fault in COSTLY and not _standbys(ledger):
            why = "no standby is there to take the machine's place at the moment"
            return Hit(fault=fault, at=time.time(), fired=False, why=why)
        return striker.strike(
            fault, watch.job, strike.slots[number], strike.local_ranks[number], strike.hold_s
        )

    def _look(self, watch: JobWatch, ledger: Ledger) -> None:
        watch.look()
        try:
            for row in ledger.incidents(job=self._wanted.job, evidence=False):
                if (key := f"{row.id} {row.state}") not in self._reported and row.opened_at >= watch.seen[
                    0
                ].at:
                    self._reported.add(key)
                    self._say(f"         incident {row.id} {row.incident_class.value}: {row.state}")
            if self._wanted.repair:
                self._repair(ledger)
        except HoldfastError as error:
            self._say(f"         ledger: {error}") if "ledger" not in self._reported else None
            self._reported.add("ledger")
        time.sleep(_POLL_S)

    def _repair(self, ledger: Ledger) -> None:
        """Release faulted machines as standbys once no incident is open."""
        faulted = {hit.machine for _, hits in self._struck for hit in hits if hit.fired}
        gone = [row.name for row in ledger.machines(state=MachineState.CORDONED) if row.name in faulted]
        if not gone or ledger.incidents(job=self._wanted.job, state=IncidentState.OPEN, evidence=False):
            return
        try:
            with Gateway.open(self._settings) as gateway:
                for name in gone:
                    gateway.release(name)
                    self._say(f"         {name} is repaired and released")
        except HoldfastError:
            return  # the gateway may be what is broken: the next look tries again

    def _settle(self, watch: JobWatch, ledger: Ledger) -> None:
        last = self._struck[-1] if self._struck else None
        since = max((hit.at for hit in last[1]), default=0.0) + last[0].hold_s if last else time.time()
        until = time.time() + self._wanted.settle_s
        ends = self._wanted.reference is not None
        while time.time() < until:
            self._look(watch, ledger)
            if time.time() > since and watch.is_calm(since) and (watch.is_over() or not ends):
                return

    def _report(self, ledger: Ledger, watch: JobWatch, begun: float) -> ChaosReport:
        incidents = [row for row in ledger.incidents(job=self._wanted.job) if row.opened_at >= begun]
        incidents.sort(key=lambda row: row.opened_at)
        ended = time.time()
        state, history = ledger.job(self._wanted.job).state, ledger.history(self._wanted.job)
        actions = {row.id: ledger.actions(row.id) for row in incidents}
        weights = None
        if (reference := self._wanted.reference) is not None:
            weights = reference.compare(self._settings, self._wanted.settle_s, self._say)
        sizes = {len(epoch.machines) for epoch in history.epochs if epoch.machines}
        return reports.report(
            self._wanted.job,
            self._wanted.seed,
            strikes=self._struck,
            incidents=incidents,
            actions=actions,
            seen=watch.seen,
            state=state,
            measured=ettr.measure(history, ended, since=begun),
            weights=weights,
            compared=reference is not None,
            why_differ=why_differ(watch.job, sizes),
        )


def _standbys(ledger: Ledger) -> bool:
    try:
        return bool(ledger.machines(state=MachineState.STANDBY))
    except HoldfastError:
        return False
