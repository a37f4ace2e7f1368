"""Where a playbook must not go on by itself: it says what it would do, or asks a human, and touches no machine."""

from __future__ import annotations

from pathlib import Path

from holdfast.inject.code_bug import with_bug
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.job import JobState, Mode
from tests.e2e.site import EXAMPLES, Site
from tests.e2e.waiting import wait_for


def test_observe_mode_touches_nothing(site: Site, name: str) -> None:
    """A job in mode `observe` gets an incident that says what would be done; its ranks go on."""
    before = site.submit(name, mode=Mode.OBSERVE).machines
    pids = site.pids(name)
    site.fault("xid-79", before[0])

    incident = wait_closed(site, name)
    assert incident.incident_class is IncidentClass.MACHINE_FAULT
    assert incident.state is IncidentState.DISMISSED
    assert "observe only" in incident.summary
    site.wait_more_steps(name, 20)
    assert site.pids(name) == pids
    assert site.job(name).machines == before
    assert site.evicted() == set()
    assert site.ledger.actions(incident.id) == []

    # The machine is broken, and the next check would say so: it is repaired before others use it.
    site.http.post(f"/v1/jobs/{name}/stop").raise_for_status()
    site.http.post(f"/v1/machines/{before[0]}/evict", json={}).raise_for_status()
    assert site.evicted() == {before[0]}


def test_bug_in_the_first_version_asks_a_human(site: Site, name: str, tmp_path: Path) -> None:
    """There is nothing to roll back to: the job stops, the reason is said, and no machine is blamed."""
    source = (EXAMPLES / "train_gpt.py").read_text()
    (tmp_path / "train_gpt.py").write_text(with_bug(source, "train_gpt.py"))
    before = site.submit(name, code_dir=tmp_path, first=0).machines

    incident = wait_closed(site, name)
    assert incident.incident_class is IncidentClass.USER_CODE_ERROR, site.told(name)
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "roll back" in incident.summary
    assert site.flow_run(incident)["state"]["type"] in ("RUNNING", "COMPLETED")
    assert site.job(name).state is JobState.FAILED
    assert site.job(name).machines == before
    assert site.evicted() == set()
    assert [epoch.epoch for epoch in site.epochs(name)] == [1]
    assert site.pids(name) == {}


def wait_closed(site: Site, name: str) -> Incident:
    """Wait until the job's first incident is closed, however."""

    def closed() -> Incident | None:
        found = site.incident(name)
        return found if found and found.state is not IncidentState.OPEN else None

    return wait_for(f"an incident of {name} closed", closed)
