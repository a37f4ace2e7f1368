"""A machine that computes finite, slightly wrong results while every check on it passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.paths import machine_dir
from tests.e2e.pace import digest
from tests.e2e.site import Site
from tests.e2e.test_surroundings import wait_suspended
from tests.e2e.waiting import wait_for

STEPS = 240


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_machine_whose_products_are_wrong_by_a_few_bits_is_found_by_replay(
    site: Site, name: str, tmp_path: Path
) -> None:
    """Stop-time checks pass; groups that must agree do not; the final weights are those of a clean run.

    A person reports it, with the step up to which results were right: all replicas get the same wrong gradients from
    the all-reduce, so that they agree with one another, and the loss stays where it was.
    """
    faulty, calm = tmp_path / "faulty.pt", tmp_path / "calm.pt"
    before = site.submit(name, "--out", str(faulty), steps=STEPS, machines=4, spare=1, s3_every=5).machines
    wait_for("a checkpoint in S3", lambda: site.ledger.checkpoints(name))
    good = site.step(name)
    site.fault("wrong-bits", before[1])
    assert (machine_dir(site.home, before[1]) / "faults" / "wrong-bits.json").exists()
    wait_for(
        "a checkpoint of wrong results",
        lambda: max(saved.step for saved in site.ledger.checkpoints(name)) > good + 5,
    )
    site.http.post(f"/v1/jobs/{name}/pause").raise_for_status()  # until it has been looked at
    assert site.incident(name) is None, "nothing finite speaks of it by itself"

    request = {"job": name, "last_good_step": good, "reason": "evaluation is off since then"}
    site.run_deployment("silent-corruption", {"incident": request})
    asked, _ = wait_suspended(site, name)
    answer = {"approve": True, "by": "ann", "reason": "seen it"}
    site.http.post(f"/v1/incidents/{asked.id}/approve", json=answer).raise_for_status()
    incident = site.wait_recovered(name)
    assert incident.incident_class is IncidentClass.SILENT_CORRUPTION
    done = dict(site.done(incident))
    assert (done["check"], done["replay"], done["evict"]) == (6, 1, 1), site.describe(name)
    assert site.evicted() == {before[1]}, site.describe(name)
    assert "replay" in incident.summary
    assert site.epochs(name)[1].start_step <= good

    site.wait_done(name)
    site.submit(f"{name}-calm", "--out", str(calm), steps=STEPS, machines=4, spare=0)
    site.wait_done(f"{name}-calm")
    assert digest(faulty) == digest(calm)
