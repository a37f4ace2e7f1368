"""A bit of a weight flips on one machine: no value is infinite, no check fails, and no person has to notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.models.alert import AlertKind, IncidentClass
from tests.e2e.pace import digest
from tests.e2e.site import Site
from tests.e2e.test_surroundings import wait_suspended
from tests.e2e.waiting import wait_for

STEPS = 200


def compared(site: Site) -> float:
    """How often the gateway found all replicas to hold the same."""
    lines = site.http.get("/metrics").text.splitlines()
    name = 'holdfast_replica_comparisons_total{outcome="same"}'
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


@pytest.mark.thorough
@pytest.mark.timeout(800)
def test_a_flipped_bit_is_found_and_its_machine_evicted(site: Site, name: str, tmp_path: Path) -> None:
    """Found by comparing replicas; resumed from before it; the final weights are those of a clean run."""
    faulty, calm = tmp_path / "faulty.pt", tmp_path / "calm.pt"
    before = compared(site)
    slow = ("--out", str(faulty), "--step-seconds", "0.3")
    machines = site.submit(name, *slow, steps=STEPS, machines=4, spare=1, s3_every=5).machines
    wait_for(
        lambda: f"replicas that agree; now at step {site.step(name)}",
        lambda: compared(site) > before + 1,
        120,
    )
    assert site.incident(name) is None, site.describe(name)
    site.fault("flip-bit", machines[2])

    asked, _ = wait_suspended(site, name)
    (signal,) = [alert for alert in asked.alerts if alert.kind is AlertKind.REPLICA_DIFFERS]
    assert (asked.incident_class, asked.machine) == (IncidentClass.SILENT_CORRUPTION, machines[2]), (
        site.describe(name)
    )
    assert (signal.rank, len(signal.evidence["paths"])) == (2, 1), signal.evidence
    good = signal.evidence["last_good_step"]
    answer = {"approve": True, "by": "ann", "reason": "it says where"}
    site.http.post(f"/v1/incidents/{asked.id}/approve", json=answer).raise_for_status()
    incident = site.wait_recovered(name)
    done = dict(site.done(incident))
    assert (done.get("check", 0), done.get("replay", 0), done["evict"]) == (0, 0, 1), site.describe(name)
    assert site.evicted() == {machines[2]}, site.describe(name)
    assert 0 < site.epochs(name)[1].start_step <= good, site.describe(name)
    suspect = [each.step for each in site.ledger.checkpoints(name) if each.epoch == 1 and each.suspect]
    assert all(step > good for step in suspect)

    site.wait_done(name)
    assert site.incident(name, 2) is None, site.describe(name)
    site.submit(f"{name}-calm", "--out", str(calm), steps=STEPS, machines=4, spare=0)
    site.wait_done(f"{name}-calm")
    assert digest(faulty) == digest(calm)
