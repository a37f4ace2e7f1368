"""Recovery's own processes are killed in the middle of a recovery: it ends all the same, and does nothing twice."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest
from _pytest.mark import ParameterSet

from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Epoch
from holdfast.models.job import JobState
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

ALL = ("gateway", "worker", "playbook")
TRIES = 3
"""The last steps of a playbook take milliseconds: a kill that came too late is tried again with a new fault."""

FAULTS = {
    IncidentClass.MACHINE_FAULT: "kill-machine",
    IncidentClass.JOB_CRASH: "kill-rank",
    IncidentClass.USER_CODE_ERROR: "code-bug",
}
DONE = {
    IncidentClass.MACHINE_FAULT: {"evict": 1, "swap": 1},
    IncidentClass.JOB_CRASH: {"check": 3, "rung": 1},
    IncidentClass.USER_CODE_ERROR: {"rollback": 1},
}


@dataclass(frozen=True)
class Kill:
    """The process to kill, and after which finished action of which playbook."""

    playbook: IncidentClass
    action: str
    who: tuple[str, ...]

    def __str__(self) -> str:
        who = "all" if self.who == ALL else "-".join(self.who)
        return f"{self.playbook.value}-{self.action}-{who}".replace("_", "-").replace(":", "-")


def _more(kill: Kill) -> ParameterSet:
    """One that `make test-thorough` runs."""
    return pytest.param(kill, marks=pytest.mark.thorough)


FAULT, CRASH, CODE = IncidentClass.MACHINE_FAULT, IncidentClass.JOB_CRASH, IncidentClass.USER_CODE_ERROR
# The whole table (three playbooks x their actions x four sets of victims) takes a quarter of an hour. Left out:
# worker and gateway alone after most actions (each alone is covered once per playbook that acts on machines),
# all together after the actions whose neighbours are covered, and the pause and start of a rollback, which
# are the same code as those of a crash. Kills of services are spread out: the supervisor waits longer from one to
# the next.
KILLS = (
    _more(Kill(FAULT, "pause", ("playbook",))),
    _more(Kill(FAULT, "pause", ALL)),
    _more(Kill(FAULT, "evict", ("playbook",))),
    _more(Kill(CRASH, "pause", ("playbook",))),
    Kill(FAULT, "evict", ALL),
    _more(Kill(FAULT, "swap", ("playbook",))),
    _more(Kill(CRASH, "check:inspect", ("playbook",))),
    _more(Kill(FAULT, "swap", ("gateway",))),
    _more(Kill(FAULT, "start", ("playbook",))),
    _more(Kill(CRASH, "rung", ("playbook",))),
    _more(Kill(FAULT, "start", ALL)),
    _more(Kill(FAULT, "verify", ("playbook",))),
    _more(Kill(CODE, "rollback", ("playbook",))),
    _more(Kill(FAULT, "evict", ("worker",))),
    _more(Kill(CRASH, "start", ("playbook",))),
    _more(Kill(CRASH, "rung", ALL)),
    _more(Kill(CODE, "rollback", ALL)),
)


@pytest.mark.parametrize("kill", KILLS, ids=str)
def test_killed_recovery_is_finished_and_nothing_is_done_twice(site: Site, name: str, kill: Kill) -> None:
    """SIGKILL at the moment an action is done: the next attempt does only what is missing."""
    number = 0
    site.submit(name)
    # The second try of a bad update would be one of a version that is known to be bad.
    for _ in range(1 if kill.playbook is CODE else TRIES):
        site.have_standbys(1)
        machines = site.job(name).machines
        epochs_before = len(site.epochs(name))
        number += 2 if kill.playbook is CODE else 1
        site.fault(FAULTS[kill.playbook], machines[1])
        incident, started = strike(site, f"{name}-{number}", kill)
        recovered = site.wait_recovered(name, number)
        assert recovered.incident_class is kill.playbook, site.describe(name)
        assert_done_once(site, name, recovered, machines)
        if started is not None:
            assert_not_started_again(site, name, incident, started)
            return
        assert len(site.epochs(name)) > epochs_before
    pytest.fail("the playbook was over before it could be killed")


def strike(site: Site, incident_id: str, kill: Kill) -> tuple[Incident, list[Epoch] | None]:
    """Wait for the action, then kill; the epochs at that moment, or None when the incident was closed already."""
    incident = wait_for(incident_id, lambda: known(site, incident_id), every_s=0.01)
    # Known beforehand, so that the kill itself takes no time.
    playbook = wait_for("the playbook's process", lambda: playbook_of(site, incident_id), every_s=0.01)
    victims = [playbook if who == "playbook" else site.service(who) for who in kill.who]
    wait_for(f"{kill.action} done", lambda: is_done(site, incident_id, kill.action), every_s=0.002)
    alive = [victim for victim in victims if victim is not None and victim.is_running()]
    in_time = site.ledger.incident(incident_id).state is IncidentState.OPEN and len(alive) == len(victims)
    for victim in alive:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    return incident, site.epochs(incident.job) if in_time else None


def assert_done_once(site: Site, name: str, incident: Incident, before: tuple[str, ...]) -> None:
    """One eviction and one swap, or none; one rollback, or none; the job runs, by one epoch only."""
    done = site.done(incident)
    assert done["start"] == 1
    for kind, times in DONE[incident.incident_class].items():
        assert done[kind] == times, done
    after = site.job(name).machines
    if incident.incident_class is IncidentClass.MACHINE_FAULT:
        assert site.evicted() == {before[1]}
        assert after[0] == before[0]
        assert after[1] not in before
    else:
        assert site.evicted() == set()
        assert after == before
    if incident.incident_class is IncidentClass.USER_CODE_ERROR:
        assert [version.bad for version in site.ledger.versions(name)] == [False, True]
        assert site.job(name).code_version == site.ledger.versions(name)[0].version
    # A machine that was claimed by an attempt that died must not stay behind as the job's.
    assert {machine.name for machine in site.ledger.machines(job=name)} == set(after)
    assert site.job(name).state is JobState.RUNNING
    assert set(site.pids(name)) == {0, 1}
    open_epochs = [epoch.epoch for epoch in site.epochs(name) if epoch.closed_at is None]
    assert open_epochs[-1] == site.job(name).epoch


def assert_not_started_again(site: Site, name: str, incident: Incident, at_kill: list[Epoch]) -> None:
    """Once a start was done, no attempt starts another epoch."""
    (start,) = [action for action in site.ledger.actions(incident.id) if action.kind == "start"]
    assert start.done_at is not None
    mine = [epoch.epoch for epoch in site.epochs(name) if epoch.incident_id == incident.id]
    assert mine[-1] == start.result["epoch"] == site.job(name).epoch
    if any(epoch.epoch == start.result["epoch"] for epoch in at_kill):
        assert site.epochs(name)[-1].epoch == at_kill[-1].epoch


def known(site: Site, incident_id: str) -> Incident | None:
    """The incident, once it is there."""
    return next((each for each in site.ledger.incidents() if each.id == incident_id), None)


def playbook_of(site: Site, incident_id: str) -> psutil.Process | None:
    """The process that drives the incident's flow run."""
    incident = site.ledger.incident(incident_id)
    if incident.flow_run_id is None:
        return None
    pid = int((site.flow_run(incident)["infrastructure_pid"] or "0").rpartition(":")[2])
    return psutil.Process(pid) if pid and psutil.pid_exists(pid) else None


def is_done(site: Site, incident_id: str, action: str) -> bool:
    """Whether an action whose key begins so is done."""
    return any(
        each.state == "done" and f"{each.key}:".startswith(f"{action}:")
        for each in site.ledger.actions(incident_id)
    )
