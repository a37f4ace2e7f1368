"""Elastic jobs: scaled by hand, to zero and back, smaller without a standby; no sample is lost or used twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from holdfast.models.alert import IncidentClass
from holdfast.models.job import JobState
from tests.e2e import elastic_train
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

HERE = Path(__file__).parent
SIZES = {"min": 1, "want": 3, "max": 3}


def scale(site: Site, name: str, machines: int) -> None:
    answer = site.http.post(f"/v1/jobs/{name}/scale", json={"machines": machines})
    assert answer.is_success, answer.text


def submit(site: Site, name: str, notes: Path, steps: int, **more: int) -> None:
    site.submit(
        name,
        "--notes",
        str(notes),
        steps=steps,
        sizes=SIZES,
        code_dir=HERE,
        script="elastic_train.py",
        **{"machines": 3, "spare": 0, **more},  # type: ignore[arg-type]
    )


def noted(notes: Path) -> dict[int, dict[int, list[int]]]:
    """The samples of each step, by epoch."""
    found: dict[int, dict[int, list[int]]] = {}
    for file in notes.glob("e*-r*.txt"):
        epoch = int(file.name[1:].partition("-")[0])
        for line in file.read_text().splitlines():
            step, *samples = map(int, line.split())
            found.setdefault(step, {}).setdefault(epoch, []).extend(samples)
    return found


def require_each_sample_once(site: Site, name: str, notes: Path, steps: int) -> None:
    """Of the steps that count: those of an epoch up to the step that the next one began from."""
    begun = {each.epoch: each.start_step for each in site.epochs(name)}
    used: Counter[int] = Counter()
    for step, epochs in noted(notes).items():
        counts = [
            e
            for e in epochs
            if all(begun[later] < step for later in begun if later <= e)
            and all(begun[later] >= step for later in begun if later > e)
        ]
        assert len(counts) == 1, f"step {step}: done in epochs {sorted(epochs)}, begun from {begun}"
        used.update(epochs[counts[0]])
    assert used == Counter(range(steps * elastic_train.BATCH))


def require_weights_of_a_whole_run(notes: Path, steps: int) -> None:
    """Equal to those of one process, but for the order in which gradients of ranks are added (double precision)."""
    model = elastic_train.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        batch = map(elastic_train.sample, range(step * elastic_train.BATCH, (step + 1) * elastic_train.BATCH))
        inputs, wanted = map(torch.stack, zip(*batch, strict=True))
        optimizer.zero_grad()
        (model(inputs) - wanted).square().mean().backward()
        optimizer.step()
    found = torch.load(notes / "weights.pt")
    for key, each in model.state_dict().items():
        # Rounding of some 100 steps of AdamW; another sample, twice or missing, changes the fifth digit.
        torch.testing.assert_close(found[key], each, rtol=1e-9, atol=1e-9)


def test_a_job_is_scaled_down_up_and_to_zero(site: Site, name: str, tmp_path: Path) -> None:
    """At step boundaries and from memory; at zero from S3."""
    steps = 150
    submit(site, name, tmp_path, steps)
    for number, machines in enumerate((2, 0, 3), start=1):
        if site.job(name).machines:
            site.wait_more_steps(name, 5)
        scale(site, name, machines)
        if machines:
            incident = site.wait_recovered(name, number)
            assert incident.incident_class is IncidentClass.SCALE_JOB
            assert len(site.job(name).machines) == site.job(name).spec.world_size == machines
        else:
            wait_for(
                lambda: f"at zero: {site.describe(name)}",
                lambda: site.job(name).state is JobState.SCALED_TO_ZERO,
            )
            wait_for("its machines stand by", lambda: len(site.standbys()) >= 3)
            assert site.job(name).machines == ()
    (tmp_path / "hurry").touch()
    site.wait_done(name)
    require_each_sample_once(site, name, tmp_path, steps)
    require_weights_of_a_whole_run(tmp_path, steps)


@pytest.mark.thorough
def test_without_a_standby_a_job_goes_on_with_fewer_machines_and_grows_back(
    site: Site, name: str, tmp_path: Path
) -> None:
    """Whichever machine is lost, its peer has its state; a machine that comes back is taken at a step boundary."""
    steps = 400
    submit(site, name, tmp_path, steps)
    site.wait_more_steps(name, 5)
    for number in range(1, 4):
        for machine in site.standbys():  # an operator takes all others out of service
            site.http.post(f"/v1/machines/{machine}/evict", json={"reason": "elsewhere"}).raise_for_status()
        wait_for("no standby", lambda: not site.standbys())
        lost = site.job(name).machines[1]
        site.fault("kill-machine", lost)
        incident = site.wait_recovered(name, number)
        assert incident.incident_class is IncidentClass.MACHINE_FAULT, site.describe(name)
        assert lost not in site.job(name).machines
        if site.done(incident)["shrink"]:
            break  # else the pool's schedule had made a new standby meanwhile
    else:
        pytest.fail(f"it never shrank: {site.describe(name)}")
    site.release_evicted()
    wait_for(lambda: f"grown: {site.describe(name)}", lambda: len(site.job(name).machines) == 3)
    assert IncidentClass.SCALE_JOB in {each.incident_class for each in site.ledger.incidents(job=name)}
    (tmp_path / "hurry").touch()
    site.wait_done(name)
    require_each_sample_once(site, name, tmp_path, steps)
    require_weights_of_a_whole_run(tmp_path, steps)
