"""The account of a job's time costs the gateway a tenth of a processor at most, however long the job's history is."""

from __future__ import annotations

import pytest

from holdfast.deployments.gateway.fleet import times
from holdfast.deployments.gateway.site import Site
from holdfast.models.job import Job
from holdfast.policies.accounting.ettr import Ettr
from holdfast.testing.gateway_kit import Kit

TOOK_S = 3.0


async def test_an_account_that_takes_long_is_made_seldom(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of years takes seconds; one that takes none is made in each round."""
    measure, made = times.measured, list[float]()
    took_s = TOOK_S

    def measured(site: Site, job: Job) -> tuple[Ettr, Ettr]:
        made.append(kit.clock.monotonic())
        kit.clock.advance(took_s)
        return measure(site, job)

    monkeypatch.setattr(times, "measured", measured)
    await kit.running_job()
    for _ in range(2):
        await kit.gateway.times.tick()
        kit.clock.advance(times.SHARE * TOOK_S - 1.0)
        await kit.gateway.times.tick()
        kit.clock.advance(1.0)
    assert len(made) == 2
    took_s = 0.0
    for _ in range(3):
        await kit.gateway.times.tick()
    assert len(made) == 5
