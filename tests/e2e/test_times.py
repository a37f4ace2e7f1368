"""ETTR and lost time of a real job, through a real fault."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.e2e.site import Site
from tests.e2e.waiting import wait_for


def times(site: Site, name: str) -> dict[str, Any]:
    answer = site.http.get(f"/v1/jobs/{name}/time")
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.thorough
def test_every_second_of_a_job_is_accounted_for(site: Site, name: str) -> None:
    """A killed rank costs pausing, diagnosing, restarting; a held job waits; all adds up to the wall-clock time."""
    job = site.submit(name)
    site.fault("kill-rank", job.machines[0], 0)
    site.wait_recovered(name)
    held = time.time()
    site.http.post(f"/v1/jobs/{name}/pause").raise_for_status()
    wait_for("the job waits", lambda: times(site, name)["lost_by_phase_s"].get("waiting", 0.0) > 0.5)
    site.http.post(f"/v1/jobs/{name}/resume").raise_for_status()
    waited = time.time() - held
    site.wait_more_steps(name)
    found = times(site, name)

    lost = found["lost_by_phase_s"]
    assert {"pausing", "diagnosing", "restarting", "waiting"} <= lost.keys()
    assert 0.5 < lost["waiting"] <= waited
    assert found["lost_by_class_s"]["job_crash"] > 0
    assert sum(lost.values()) + found["productive_s"] == pytest.approx(found["wall_s"], abs=1e-6)
    assert sum(found["lost_by_class_s"].values()) == pytest.approx(sum(lost.values()), abs=1e-6)
    assert 0 < found["ettr"] < 1
    stretches = site.ledger.stretches(name)
    assert sum(row.last_step - row.first_step + 1 for row in stretches) >= site.ledger.max_step(name) - 50
    assert any(row.stall_s > 0 for row in stretches), "a checkpoint at every step takes some time"

    def ettr_metrics() -> str | None:
        text = httpx.get(f"{site.settings.gateway}/metrics", headers=site.headers, timeout=60).text
        return text if f'holdfast_job_ettr{{job="{name}"' in text else None

    assert 'phase="pausing"' in wait_for("the metrics of the job", ettr_metrics)
