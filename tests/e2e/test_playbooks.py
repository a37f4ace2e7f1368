"""Every playbook against its fault: it fired, it was recovered, by the right culprit, with nothing else hurt."""

from __future__ import annotations

import os
import signal
import uuid
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.paths import machine_dir
from holdfast.storage.code import versions
from tests.e2e.pace import SLOW_SECOND_EPOCH, Paced, calm, digest
from tests.e2e.site import EXAMPLES, Site
from tests.e2e.waiting import wait_for

DIAGNOSED = {"pause": 1, "check": 3, "rung": 1, "start": 1, "verify": 1, "replenish": 1}
IN_PLACE = {"pause": 1, "rung": 1, "start": 1, "verify": 1, "replenish": 1}
REPLACED = {"pause": 1, "evict": 1, "swap": 1, "start": 1, "verify": 1, "replenish": 1}
ROLLED_BACK = {"pause": 1, "rung": 1, "rollback": 1, "start": 1, "verify": 1}


def assert_replaced(site: Site, name: str, before: tuple[str, ...], culprit: str) -> None:
    """Only ``culprit`` is out; its memory is gone, its slot has another machine, and nothing of the job is on it."""
    after = site.job(name).machines
    slot = before.index(culprit)
    assert site.evicted() == {culprit}
    assert [one for one in before if one != culprit] == [one for i, one in enumerate(after) if i != slot]
    assert after[slot] not in before
    assert site.memory_of(culprit) == []
    assert next(one for one in site.driver.machines() if one.name == culprit).alive is False
    site.wait_more_steps(name)
    assert site.evicted() == {culprit}
    assert culprit not in site.epochs(name)[-1].machines
    assert {one.name for one in site.ledger.machines(state=MachineState.ACTIVE, job=name)} == set(after)


def assert_in_place(site: Site, name: str, before: tuple[str, ...]) -> None:
    """The same machines go on, and none is out of service."""
    assert site.job(name).machines == before
    assert site.evicted() == set()


def assert_one_incident(site: Site, name: str, expected: IncidentClass, actions: dict[str, int]) -> Incident:
    """One incident, recovered at its first attempt by exactly these actions, in one new epoch."""
    incident = site.wait_recovered(name)
    assert [each.id for each in site.ledger.incidents(job=name)] == [incident.id], site.describe(name)
    assert incident.incident_class is expected, site.describe(name)
    assert site.attempts(incident) == 1, site.describe(name)
    assert dict(site.done(incident)) == actions
    assert [epoch.epoch for epoch in site.epochs(name)] == [1, 2]
    assert site.job(name).state is JobState.RUNNING
    return incident


def test_killed_rank_is_retried_in_place(site: Site, name: str) -> None:
    """A rank's unexplained death costs a diagnosis and a restart, no machine and no step.

    Its last step is in its machine's memory: the new epoch starts right after it.
    """
    before = site.submit(name, every_step=True).machines
    killed = psutil.Process(site.pids(name)[1])
    hit = site.fault("kill-rank", before[1])
    assert hit.rank == 1
    wait_for("the rank is dead", lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)

    incident = assert_one_incident(site, name, IncidentClass.JOB_CRASH, DIAGNOSED)
    assert incident.rank == 1
    assert_in_place(site, name, before)
    first, second = site.epochs(name)
    # The step that was under way when the rank died was completed by no rank.
    assert (first.last_step or 0) - 1 <= second.start_step
    assert second.first_step == second.start_step + 1


def test_xid_79_evicts_without_diagnosis(site: Site, name: str) -> None:
    """A GPU that fell off the bus is sure: no check is run, although agent and ranks live."""
    before = site.submit(name).machines
    agent = site.agent(before[1])
    assert agent is not None
    site.fault("xid-79", before[1])
    assert "Xid" in (machine_dir(site.home, before[1]) / "kernel.log").read_text()

    incident = assert_one_incident(site, name, IncidentClass.MACHINE_FAULT, REPLACED)
    assert incident.machine == before[1]
    assert incident.alerts[0].evidence["xid"] == 79
    assert_replaced(site, name, before, before[1])


def test_hanging_rank_is_found_by_its_stack(site: Site, name: str) -> None:
    """All ranks wait for one that a signal stopped: retried in place, and its machine is evicted at the second time."""
    before = site.submit(name).machines
    for number in (1, 2):
        # A hang is judged by the pace that the job had.
        site.wait_more_steps(name)
        stopped = psutil.Process(site.pids(name)[1])
        site.fault("hang-rank", before[1])
        wait_for("the rank is stopped", lambda: stopped.status() == psutil.STATUS_STOPPED)  # noqa: B023
        incident = site.wait_recovered(name, number)
        assert incident.incident_class is IncidentClass.JOB_HANG, site.describe(name)
        if number == 1:
            assert dict(site.done(incident)) == {"stacks": 1, **IN_PLACE}, site.describe(name)
            assert_in_place(site, name, before)
    assert dict(site.done(incident)) == {"stacks": 1, "rung": 1, **REPLACED}, site.describe(name)
    assert_replaced(site, name, before, before[1])
    assert not stopped.is_running()
    assert f"{before[1]} stands out again: processes of ranks 1 are stopped" in incident.summary


@pytest.mark.thorough
def test_rank_that_does_not_end_is_a_hang(site: Site, name: str, tmp_path: Path) -> None:
    """All steps are done and the other rank has ended: the job starts again from its last step, and is done."""
    source = (EXAMPLES / "train_gpt.py").read_text().rstrip()
    assert source.endswith("main()")
    once = tmp_path / "once"
    ending = f"""
    import pathlib, threading
    if os.environ["RANK"] == "1" and not (once := pathlib.Path({str(once)!r})).exists():
        once.touch()
        threading.Event().wait()
"""
    (tmp_path / "train_gpt.py").write_text(source + ending)
    before = site.submit(name, steps=20, code_dir=tmp_path).machines
    site.wait_done(name)

    (incident,) = site.ledger.incidents(job=name)
    assert incident.incident_class is IncidentClass.JOB_HANG, site.describe(name)
    incident = wait_for(
        lambda: f"its end: {site.describe(name)}",
        lambda: (found := site.ledger.incident(incident.id)).state is not IncidentState.OPEN and found,
    )
    assert incident.state is IncidentState.RECOVERED, site.describe(name)
    assert [epoch.start_step for epoch in site.epochs(name)] == [0, 20]
    assert_in_place(site, name, before)


@pytest.mark.thorough
def test_a_batch_at_which_the_job_fell_twice_is_passed_over(site: Site, name: str, tmp_path: Path) -> None:
    """Where its file allows that: it is done after two falls, and no machine is blamed."""
    source = (EXAMPLES / "train_gpt.py").read_text()
    reading = "        tokens, targets = batches.next()\n"
    assert source.count(reading) == 1
    bad = """        if session.skips(step):
            session.step(step)
            session.checkpoint(state)
            continue
        if step == 12:
            raise OSError("record 4711: bad CRC")
"""
    (tmp_path / "train_gpt.py").write_text(source.replace(reading, bad + reading))
    before = site.submit(name, steps=30, code_dir=tmp_path, skip_bad_batches=1).machines
    site.wait_done(name)

    newest = site.ledger.incidents(job=name)[0]
    assert newest.incident_class is IncidentClass.JOB_CRASH, site.describe(name)
    assert "came after step 11 2 times" in newest.summary
    assert "the data of step 12 is skipped" in newest.summary
    assert site.ledger.skipped_steps(name) == (12,)
    assert site.job(name).machines == before
    assert site.evicted() == set()
    assert [epoch.start_step for epoch in site.epochs(name)] == [0, 11, 11]


def test_update_takes_effect_now(site: Site, name: str, tmp_path: Path) -> None:
    """A hot update holds the job at a step boundary and goes on from that very step with the new code."""
    before = site.submit(name).machines
    version = changed(site, name, tmp_path, "urgent change")
    answer = site.http.post(f"/v1/jobs/{name}/update", json={"version": version, "when": "now"})
    assert answer.is_success, answer.text

    expected = {"hold": 1, "pause": 1, "update": 1, "start": 1, "verify": 1}
    incident = assert_one_incident(site, name, IncidentClass.CODE_UPDATE, expected)
    assert_in_place(site, name, before)
    assert site.job(name).code_version == version
    (hold,) = [action for action in site.ledger.actions(incident.id) if action.kind == "hold"]
    assert hold.result["held"], hold.result
    first, second = site.epochs(name)
    assert second.code_version == version
    # The step that all ranks were held at; the ledger may not have the last few before it.
    assert second.start_step == hold.result["step"] >= (first.last_step or 0)
    assert "urgent change" in log_of_rank_0(site, name, 2)


def test_lazy_update_rides_on_the_next_restart(site: Site, name: str, tmp_path: Path) -> None:
    """An update that is not urgent interrupts nothing: the restart after the next fault takes it along.

    The fault is SIGABRT, as from a failed assertion in a library: the signal is in the evidence.
    """
    before = site.submit(name).machines
    old = site.job(name).code_version
    version = changed(site, name, tmp_path, "lazy change")
    answer = site.http.post(f"/v1/jobs/{name}/update", json={"version": version, "when": "lazy"})
    assert answer.is_success, answer.text
    site.wait_more_steps(name)
    assert site.incident(name) is None
    assert site.job(name).code_version == old

    os.kill(site.pids(name)[0], signal.SIGABRT)
    incident = assert_one_incident(site, name, IncidentClass.JOB_CRASH, DIAGNOSED)
    assert incident.rank == 0
    assert any(alert.evidence.get("signal") == "SIGABRT" for alert in incident.alerts)
    assert_in_place(site, name, before)
    assert [epoch.code_version for epoch in site.epochs(name)] == [old, version]
    assert "lazy change" in log_of_rank_0(site, name, 2)


def test_code_bug_is_rolled_back(site: Site, name: str, tmp_path: Path) -> None:
    """An update that raises some steps later: no machine is touched, the last good version runs again."""
    paced = Paced(tmp_path, SLOW_SECOND_EPOCH)
    before = site.submit(name, code_dir=paced.code).machines
    good = site.job(name).code_version
    site.fault("code-bug", before[0])

    update = site.wait_recovered(name, 1)
    assert update.incident_class is IncidentClass.CODE_UPDATE
    # Had it raised before the update was found to be up, it would have been taken back as one that does not come up.
    paced.hurry()
    incident = site.wait_recovered(name, 2)
    assert incident.incident_class is IncidentClass.USER_CODE_ERROR, site.describe(name)
    assert site.attempts(incident) == 1, site.describe(name)
    assert dict(site.done(incident)) == ROLLED_BACK
    assert "TypeError" in " ".join(incident.reasons)
    assert_in_place(site, name, before)
    assert site.job(name).code_version == good
    assert [version.bad for version in site.ledger.versions(name)] == [False, True]
    assert [epoch.epoch for epoch in site.epochs(name)] == [1, 2, 3]


@pytest.mark.thorough
def test_nan_that_does_not_come_again_evicts_no_machine(site: Site, name: str) -> None:
    """One damaged product: checks and replay find nothing, and training goes on from the last good step."""
    before = site.submit(name, machines=4, spare=0).machines
    planted = machine_dir(site.home, before[2]) / "faults" / "nan.json"
    site.fault("nan", before[2])
    wait_for("the rank takes the fault", lambda: not planted.exists())

    expected = {"pause": 1, "check": 5, "rung": 1, "replay": 1, "start": 1, "verify": 1, "replenish": 1}
    incident = assert_one_incident(site, name, IncidentClass.NAN_LOSS, without_marks(site, name, expected))
    assert_in_place(site, name, before)
    bad = min(int(alert.evidence["step"]) for alert in incident.alerts if "step" in alert.evidence)
    assert site.epochs(name)[1].start_step < bad


def test_machine_that_computes_wrongly_is_found_by_a_fixed_product(site: Site, name: str) -> None:
    """The loss is not finite on every rank; one machine's own product of two known matrices is wrong."""
    before = site.submit(name, machines=4, spare=1, s3_every=5).machines
    wait_for("a checkpoint in S3", lambda: site.ledger.checkpoints(name))
    site.fault("bad-matmul", before[1])
    assert (machine_dir(site.home, before[1]) / "faults" / "bad-matmul.json").exists()

    expected = {"check": 2, **REPLACED}
    incident = assert_one_incident(site, name, IncidentClass.NAN_LOSS, without_marks(site, name, expected))
    assert before[1] in incident.summary
    assert_replaced(site, name, before, before[1])


@pytest.mark.thorough
def test_saved_states_after_the_bad_step_are_kept_but_not_restored(site: Site, name: str) -> None:
    """Run by hand with a bound: later checkpoints in S3 are marked suspect, none is deleted, none is restored."""
    site.submit(name, s3_every=5)
    kept = wait_for("three checkpoints in S3", lambda: three(site.ledger.checkpoints(name)))
    bound = kept[-1].step
    request = {"job": name, "last_good_step": bound, "reason": "the loss looks odd since then"}
    run = site.run_deployment("nan-loss", {"incident": request})
    wait_for("the run opens an incident", lambda: site.incident(name))

    incident = site.wait_recovered(name)
    # Replay finds nothing: nothing is broken.
    assert site.evicted() == set()
    assert site.epochs(name)[1].start_step <= bound
    assert site.artifacts(run)
    # Uploads that were under way at the fault may have ended after the marking; they are of the fenced epoch.
    now = {each.key: each.suspect for each in site.ledger.checkpoints(name)}
    for checkpoint in kept:
        assert now[checkpoint.key] is (checkpoint.step > bound)
        held = {path.key for path in site.store.list(checkpoint.key)}
        assert any(key.endswith("manifest.json") for key in held)
        assert any(key.endswith("suspect.json") for key in held) is (checkpoint.step > bound)
    assert incident.state is IncidentState.RECOVERED


def test_standby_pool_is_sized_by_the_schedule(site: Site) -> None:
    """The scheduled flow provisions up to its target, retires beyond it, and publishes its reasoning."""
    site.have_standbys(2)
    before = site.ledger.pool()
    wait_for("no machine on its way", lambda: not site.ledger.machines(state=MachineState.PROVISIONING))
    had = site.standbys()
    try:
        more = site.run_deployment("resize-standby-pool", {"sizing": sized(len(had) + 1)})
        new = wait_for("one more standby", lambda: set(site.standbys()) - set(had))
        assert len(new) == 1
        assert site.ledger.pool().target == len(had) + 1
        (artifact,) = wait_for("the reasoning", lambda: site.artifacts(more))
        assert "Binomial" in artifact["data"]

        site.run_deployment("resize-standby-pool", {"sizing": sized(len(had))})
        wait_for("the pool shrinks", lambda: len(site.standbys()) == len(had))
        wait_for("the newest is gone", lambda: not machine_dir(site.home, *new).exists())
    finally:
        site.ledger.set_pool(before.target or 1, "the test is over")


@pytest.mark.timeout(600)
def test_faults_change_no_bit_of_the_result(site: Site, name: str, tmp_path: Path) -> None:
    """A job that lost a rank and a machine ends with the weights of a job that lost nothing."""
    faulty, paced = tmp_path / "faulty.pt", Paced(tmp_path)
    machines = site.submit(name, "--out", str(faulty), steps=120, code_dir=paced.code).machines
    site.fault("kill-rank", machines[1])
    site.wait_recovered(name, 1)
    site.wait_more_steps(name)
    site.fault("kill-machine", machines[0])
    site.wait_recovered(name, 2)
    paced.hurry()
    site.wait_done(name)
    assert len(site.epochs(name)) == 3
    assert digest(faulty) == calm(site, 120)


def changed(site: Site, name: str, folder: Path, line: str) -> str:
    """A version of the example that prints ``line`` when it starts."""
    source = (EXAMPLES / "train_gpt.py").read_text()
    (folder / "train_gpt.py").write_text(
        source.replace(
            "    args = arguments()\n", f'    args = arguments()\n    print("{line}", flush=True)\n', 1
        )
    )
    version = versions.store(site.store, name, folder)
    assert version != site.job(name).code_version
    return version


def log_of_rank_0(site: Site, name: str, epoch: int) -> str:
    """Lines that rank 0 wrote in an epoch."""
    return (
        machine_dir(site.home, site.job(name).machines[0]) / "logs" / name / f"e{epoch}-r0.log"
    ).read_text()


def without_marks(site: Site, name: str, expected: dict[str, int]) -> dict[str, int]:
    """Bounded by the first bad step, the playbook marks later checkpoints once, whether there are any or not."""
    return {"suspect": 1, **expected}


def three(checkpoints: list[RemoteCheckpoint]) -> list[RemoteCheckpoint] | None:
    """The newest three, newest first, once there are three."""
    return checkpoints[:3] if len(checkpoints) >= 3 else None


def sized(target: int) -> dict[str, float]:
    """Parameters that leave the pool no choice."""
    return {"minimum": target, "maximum": target}


def test_a_prefect_event_is_a_signal(site: Site, name: str) -> None:
    """Any flow may say that a machine is not well; the same event twice is one incident."""
    before = site.submit(name).machines
    event = {
        "id": str(uuid.uuid4()),
        "event": "holdfast.alert",
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": f"holdfast.machine.{before[1]}"},
        "payload": {"kind": "gpu_lost", "error": "found by the night's check"},
    }

    def received() -> Incident | None:
        """Prefect keeps no event for a listener that is away for a moment: a real sender emits it again."""
        for _ in range(2):
            answer = site.prefect.post("/events", json=[event])
            assert answer.is_success, answer.text
        return site.incident(name)

    wait_for("the event is received", received, every_s=2.0)
    incident = assert_one_incident(site, name, IncidentClass.MACHINE_FAULT, REPLACED)
    assert incident.alerts[0].evidence["source"] == "prefect"
    assert_replaced(site, name, before, before[1])
