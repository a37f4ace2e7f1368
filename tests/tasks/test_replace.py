"""The gateway replaces a lost machine while the playbook is being started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.alert import Alert, AlertKind, Classification, Incident, IncidentClass
from holdfast.models.machine import MachineState
from holdfast.operations.head_start import head_start
from holdfast.policies.config.policy import Policy
from holdfast.testing.gateway_kit import Kit
from holdfast.testing.play import stage
from holdfast.testing.scenario import Scenario

JOB = "gpt"


class Site:
    """Four machines of two ranks that keep their processes, two standbys, and a gateway with scripted agents."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    async def lose(
        self, world: dict[str, Any], setup: dict[str, Any] | None = None, **alert: Any
    ) -> Incident:
        """Lose m1, and make the head start; the playbook does not run."""
        known = {"name": "lost", "setup": {"head_start": True, **(setup or {})}, "signals": []}
        scenario = Scenario.model_validate(known | {"world": {"keeps": True, **world}, "expect": {}})
        await stage(scenario, self.kit)
        ledger, services = self.kit.ledger, self.kit.acts.services
        assert services is not None
        facts = {"kind": AlertKind.MACHINE_LOST, "job": JOB, "machine": "m1", "incarnation": "i1", "at": 0.0}
        found = Classification(
            incident_class=IncidentClass.MACHINE_FAULT, confidence=1.0, machine="m1", reasons=("lost",)
        )
        incident = ledger.open_incident(
            JOB, found, ledger.job(JOB).epoch, [Alert.model_validate(facts | alert)], self.kit.clock.now()
        )
        await head_start(services, incident)
        return incident

    def done(self, incident: Incident) -> list[str]:
        """Return what was done for it."""
        return [action.key for action in self.kit.ledger.actions(incident.id) if action.state.value == "done"]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    kit = Kit(tmp_path, policy=Policy.load())
    yield Site(kit)
    await kit.close()


async def test_a_machine_that_refuses_connections_is_replaced_and_the_job_started(site: Site) -> None:
    """Under the playbook's keys: it has nothing left to do but to see the first step. The lease is free again."""
    incident = await site.lose({"dead": {"m1"}})
    ledger = site.kit.ledger
    assert site.done(incident) == ["pause:e1", "evict:m1", "swap:m1", "start:after-e1"]
    assert ledger.machine("m1").state is MachineState.CORDONED
    assert ledger.job(JOB).machines == ("m0", "m4", "m2", "m3")
    assert ledger.job(JOB).epoch == 2
    held = ledger.job_lease(JOB)
    assert held is None or not held.live


@pytest.mark.parametrize(
    ("world", "setup", "alert"),
    [
        ({"silent": {"m1"}}, {}, {}),
        ({"dead": {"m1", "m2"}}, {}, {}),
        ({}, {}, {}),
        ({"dead": {"m1"}, "keeps": False}, {}, {}),
        ({"dead": {"m1"}}, {"standbys": 0}, {}),
        ({"dead": {"m1"}}, {}, {"incarnation": "i0"}),
        ({"dead": {"m1"}}, {}, {"kind": AlertKind.GPU_LOST}),
    ],
    ids=["may-run-on", "two", "answers", "not-kept", "no-standby", "former-life", "a-gpu"],
)
async def test_with_any_doubt_the_job_is_only_stopped(
    site: Site, world: dict[str, Any], setup: dict[str, Any], alert: dict[str, Any]
) -> None:
    """The playbook decides: it waits out leases, asks people, and provisions machines."""
    incident = await site.lose(world, setup, **alert)
    assert site.done(incident) == ["pause:e1"]
    assert "m1" in site.kit.ledger.job(JOB).machines
    assert site.kit.ledger.machine("m1").state is MachineState.ACTIVE
