"""One demo run: the job with its faults, then the same job without, then the facts for the report."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from rich.console import Console

from holdfast import redact
from holdfast.client import job_code
from holdfast.client.gateway import Gateway
from holdfast.demo import report as reports
from holdfast.demo import weights
from holdfast.demo.faults import SCHEDULE
from holdfast.demo.observer import JobFacts, Observer
from holdfast.demo.story import Story
from holdfast.demo.view import View
from holdfast.errors import HoldfastError
from holdfast.inject import inject
from holdfast.models.job import CheckpointPolicy, JobSpec, JobState
from holdfast.policies.accounting import ettr
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

START_DEADLINE_S = 60.0
RUN_DEADLINE_S = 240.0
S3_EVERY_STEPS = 10
STEP_S = 0.2
"""A step takes at least this long: on a fast machine too, the job lasts until the last fault."""


class DemoRun:
    """Plays the story once; every time under a new job name, so that the ledger keeps them apart."""

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        script: Path,
        console: Console,
        *,
        steps: int,
        machines: int,
        ranks_per_machine: int,
        standbys: int,
    ) -> None:
        self._settings, self._gateway, self._script, self._console = settings, gateway, script, console
        self._steps, self._machines, self._ranks_per_machine = steps, machines, ranks_per_machine
        taken = {job.name for job in gateway.jobs()}
        self._job = next(name for n in range(1, 10_000) if (name := f"demo-{n}") not in taken)
        self._standbys = standbys
        self._folder = settings.home / "demo"

    @property
    def reference(self) -> str:
        """Name of the job without faults."""
        return f"{self._job}-reference"

    def play(self) -> reports.DemoReport:
        """Play both runs and compare them. A fault that is not recovered is in the report, not an error."""
        trouble: list[str] = []
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._ledger() as ledger:
            ledger.set_pool(self._standbys, "the demo keeps as many as it began with")
        with View(self._console, self._steps) as view:
            observer = Observer(self._gateway, self._job, view.show)
            story = Story(observer, SCHEDULE, self._inject, self._ranks_per_machine, view.say)
            try:
                self._submit(observer)
                story.play()
                observer.wait("the end of the run", _done, RUN_DEADLINE_S)
            except HoldfastError as error:
                trouble.append(str(error))
                view.say(f"error: {error}")
        comparison = self._compare(trouble) if not trouble else None
        return self._report(observer, story, comparison, trouble)

    def _submit(self, observer: Observer) -> None:
        """Start the job of ``observer`` once there are machines for it, and see its first step."""

        def supplied(facts: JobFacts) -> bool:
            return facts.standbys >= self._machines

        observer.wait(f"{self._machines} machines that are ready", supplied, START_DEADLINE_S)
        code = self._script.parent.resolve()
        out = self._weights(observer.job)
        out.unlink(missing_ok=True)
        spec = JobSpec(
            name=observer.job,
            script=self._script.name,
            args=("--steps", str(self._steps), "--step-seconds", str(STEP_S), "--out", str(out)),
            code=str(code),
            machines=self._machines,
            ranks_per_machine=self._ranks_per_machine,
            checkpoint=CheckpointPolicy(s3_every_steps=S3_EVERY_STEPS),
        )
        self._gateway.submit(spec, job_code.store(self._settings, spec.name, code))
        observer.wait("the first step", lambda facts: facts.step > 0, START_DEADLINE_S)

    def _inject(self, fault: str, machine: str, rank: int | None) -> float:
        return float(inject(self._settings.home, fault, machine, rank).at)

    def _compare(self, trouble: list[str]) -> weights.WeightsComparison | None:
        """Return the same job without faults, to its end; then the weights of both."""
        self._console.print("now the same job without faults, to compare the weights")
        try:
            with View(self._console, self._steps) as view:
                observer = Observer(self._gateway, self.reference, view.show)
                self._submit(observer)
                observer.wait("the end of the run without faults", _done, RUN_DEADLINE_S)
            return weights.compare(self._weights(self._job), self._weights(self.reference))
        except (HoldfastError, OSError) as error:
            trouble.append(f"run without faults: {error}")
            return None

    def _report(
        self,
        observer: Observer,
        story: Story,
        comparison: weights.WeightsComparison | None,
        trouble: list[str],
    ) -> reports.DemoReport:
        with self._ledger() as ledger:
            by_incident = {row.incident_id: row for row in story.injected if row.incident_id}
            for incident_id, row in by_incident.items():
                ledger.set_incident(incident_id, injected_at=row.at)
            incidents = sorted(ledger.incidents(job=self._job), key=lambda row: row.opened_at)
            lines = [
                reports.incident_line(row, ledger.actions(row.id), by_incident.get(row.id))
                for row in incidents
            ]
            history = ledger.history(self._job)
        epochs = history.epochs
        ended = next((epoch.last_step_at for epoch in reversed(epochs) if epoch.last_step_at), time.time())
        measured = ettr.measure(history, ended)
        started = epochs[0].opened_at if epochs else ended
        equal = comparison is not None and comparison.equal
        state = observer.samples[-1].state if observer.samples else ""
        found = reports.problems(story.injected, len(SCHEDULE), lines, state, equal)
        return reports.DemoReport(
            ok=not found and not trouble,
            bitwise_equal=equal,
            ettr=round(measured.ettr, 4),
            steps_total=self._steps,
            steps_recomputed=measured.steps_recomputed,
            wall_s=round(ended - started, 3),
            lost_by_phase_s=measured.account.by_phase(),
            lost_by_class_s=measured.account.by_class(),
            started_at=started,
            job=self._job,
            reference_job=self.reference,
            problems=(*trouble, *found),
            incidents=tuple(lines),
            timeline=reports.timeline(observer.samples, started),
            prefect_url=redact.link(self._settings.prefect_ui),
        )

    def _ledger(self) -> closing[Ledger]:
        return closing(Ledger(self._settings.database))

    def _weights(self, job: str) -> Path:
        return self._folder / f"{job}.pt"


def _done(facts: JobFacts) -> bool:
    return facts.state == JobState.DONE
