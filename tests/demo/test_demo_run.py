"""A whole demo run against a world in memory and a real ledger: what it asks for and what it reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.client import job_code
from holdfast.demo import demo_run, observer, written_report
from holdfast.models.alert import Classification, IncidentState
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from tests.demo.world import CLASS_OF, KILL_MACHINE, KILL_RANK

torch = pytest.importorskip("torch")


class Cluster:
    """Trains a step a look; recovers a fault in two looks. Writes the ledger as gateway and playbooks do."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.specs: dict[str, JobSpec] = {}
        self.current, self.step, self.state, self.open = "", 0, JobState.DONE, ""
        self.injected: list[str] = []
        self.final: dict[str, float] = {}
        """The final weights of a job (by name, else 1.0)."""
        self.heals = True

    def jobs(self) -> list[Job]:
        return self.ledger.jobs()

    def submit(self, spec: JobSpec, version: str) -> Job:
        self.specs[spec.name] = spec
        self.current, self.step, self.state = spec.name, 0, JobState.RUNNING
        self.ledger.add_job(spec, version)
        self.ledger.next_epoch(spec.name)
        self.ledger.open_epoch(spec.name, 1, 0, version, ["m0", "m1", "m2", "m3"], "submitted")
        return self.ledger.set_job(spec.name, state=JobState.RUNNING)

    def inject(self, home: Path, fault: str, machine: str, rank: int | None) -> Any:
        self.injected.append(fault)
        kind = Classification(
            incident_class=CLASS_OF[fault], confidence=0.9, machine=machine, reasons=("seen",)
        )
        at = self.ledger._clock.now()
        opened = self.ledger.open_incident(self.current, kind, 1, [], at)
        for key in ("pause:e1", f"evict:{machine}"):
            self.ledger.begin(opened.id, 1, key, key.partition(":")[0], {})
            self.ledger.finish(opened.id, key)
        self.open, self.state = opened.id, JobState.RECOVERING
        return type("Injected", (), {"at": at})()

    def status(self) -> dict[str, Any]:
        if self.state is JobState.RECOVERING and self.heals:
            now = self.ledger._clock.now()
            self.ledger.set_incident(
                self.open, state=IncidentState.RECOVERED, first_task_at=now, recovered_at=now
            )
            self.state = JobState.RUNNING
        elif self.state is JobState.RUNNING:
            self._train()
        job = {"name": self.current, "state": self.state.value, "epoch": 1, "step": self.step}
        return {
            "jobs": [job | {"machines": ["m0", "m1", "m2", "m3"]}] if self.current else [],
            "machines": [{"name": f"m{n}", "state": "standby"} for n in range(4)],
        }

    def incidents(self, job: str | None = None, state: str | None = None) -> list[Any]:
        return self.ledger.incidents(self.ledger.job(job or self.current).name)

    def _train(self) -> None:
        self.step += 1
        args = self.specs[self.current].args
        self.ledger.mark(self.current, 1, self.step, self.ledger._clock.now())
        if self.step == int(args[args.index("--steps") + 1]):
            weight = torch.tensor([self.final.get(self.current, 1.0)])
            torch.save(
                {"step": self.step, "digest": "", "model": {"w": weight}}, args[args.index("--out") + 1]
            )
            self.state = JobState.DONE


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.create()
    fake = Cluster(ledger)
    monkeypatch.setattr(demo_run, "inject", fake.inject)
    monkeypatch.setattr(demo_run, "SCHEDULE", (KILL_RANK, KILL_MACHINE))
    monkeypatch.setattr(observer, "POLL_S", 0.001)
    monkeypatch.setattr(job_code, "store", lambda settings, job, code: "0123456789ab")
    yield fake
    ledger.close()


def play(cluster: Cluster, folder: Path, steps: int = 40) -> Any:
    settings = Settings(home=folder)
    script = folder / "train_gpt.py"
    script.touch()
    return demo_run.DemoRun(
        settings,
        cluster,  # type: ignore[arg-type]
        script,
        Console(quiet=True),
        steps=steps,
        machines=4,
        ranks_per_machine=2,
        standbys=2,
    ).play()


def test_all_recovered_and_equal_is_ok(cluster: Cluster, tmp_path: Path) -> None:
    """Both runs are the same job but for name and output; the report has every fault with its incident."""
    report = play(cluster, tmp_path)
    assert report.problems == ()
    assert report.ok
    assert report.bitwise_equal
    assert cluster.injected == ["kill-rank", "kill-machine"]
    assert [line.fault for line in report.incidents] == cluster.injected
    assert all(line.actions for line in report.incidents)
    assert 0 < report.ettr <= 1
    one, other = cluster.specs["demo-1"], cluster.specs["demo-1-reference"]
    same = {"name": "", "args": one.args[:4]}
    assert one.model_copy(update=same) == other.model_copy(update=same)
    assert cluster.ledger.pool().target == 2
    assert cluster.ledger.incident("demo-1-1").injected_at is not None
    written_report.write(report, tmp_path / "demo")
    assert json.loads((tmp_path / "demo" / "report.json").read_text())["ok"] is True


def test_other_weights_are_not_ok(cluster: Cluster, tmp_path: Path) -> None:
    """The control of the comparison: one bit is enough."""
    cluster.final["demo-1"] = 1.0 + 2**-23
    report = play(cluster, tmp_path)
    assert not report.ok
    assert not report.bitwise_equal
    assert "differ" in " ".join(report.problems)


def test_what_is_not_recovered_is_reported(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reference run then; the report still has the events."""
    cluster.heals = False
    monkeypatch.setattr(demo_run, "SCHEDULE", (KILL_MACHINE.model_copy(update={"deadline_s": 0.2}),))
    report = play(cluster, tmp_path)
    assert not report.ok
    assert "recovery from kill-machine" in report.problems[0]
    assert list(cluster.specs) == ["demo-1"]


def test_a_second_demo_takes_new_names(cluster: Cluster, tmp_path: Path) -> None:
    """The ledger keeps the runs apart."""
    play(cluster, tmp_path)
    assert play(cluster, tmp_path).job == "demo-2"
