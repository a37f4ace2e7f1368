"""Prefect events as alerts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.deployments.gateway.intake.prefect_events import PrefectEvents, parse
from holdfast.errors import SettingsError
from holdfast.models.alert import AlertKind, IncidentClass
from holdfast.testing.gateway_kit import JOB, Kit

WHEN = datetime(2026, 11, 21, tzinfo=UTC)
NOW = WHEN.timestamp() + 1


def parsed(resource: str = "anything", **payload: Any) -> Any:
    return parse("e1", WHEN, {"prefect.resource.id": resource}, payload, NOW)


def test_a_payload_is_an_alert_and_its_evidence() -> None:
    """Entries that are no field of an alert are evidence."""
    found = parsed(kind="external_service", job="gpt", service="tracker", evidence={"error": "timeout"})
    assert (found.kind, found.job, found.at) == (AlertKind.EXTERNAL_SERVICE, "gpt", WHEN.timestamp())
    assert found.evidence == {"source": "prefect", "service": "tracker", "error": "timeout"}
    assert found.fingerprint == "prefect:e1"


def test_the_resource_may_name_job_or_machine() -> None:
    """The payload has precedence."""
    assert parsed("holdfast.job.gpt", kind="hang").job == "gpt"
    assert parsed("holdfast.machine.m1", kind="gpu_lost").machine == "m1"
    assert parsed("holdfast.job.gpt", kind="hang", job="other").job == "other"


def test_a_clock_that_is_ahead_does_not_make_an_alert_of_the_future() -> None:
    """Its time is ours at most."""
    assert parse("e", WHEN, {}, {"kind": "hang"}, WHEN.timestamp() - 50).at == WHEN.timestamp() - 50


@pytest.mark.parametrize(
    ("payload", "text"),
    [({}, "kind"), ({"kind": "bang"}, "'bang'"), ({"kind": "hang", "rank": "x"}, "rank = 'x'")],
)
def test_what_is_no_alert_is_refused(payload: dict[str, Any], text: str) -> None:
    """With the field and the value."""
    with pytest.raises(SettingsError, match=text):
        parsed(**payload)


async def test_an_event_opens_an_incident_once(kit: Kit) -> None:
    """The same event again is a duplicate; one that is none is logged, and nothing else."""
    await kit.running_job()
    events = PrefectEvents(kit.gateway.correlator)
    when = datetime.fromtimestamp(kit.clock.now(), UTC)
    payload = {"kind": "gpu_lost", "machine": "m1", "error": "seen by the night's check"}
    for _ in range(2):
        await events.take("e7", when, {}, payload)
    await events.take("e8", when, {}, {"kind": "nothing"})
    await events.take("e9", when, {}, {"kind": "gpu_lost", "machine": "m1", "firing": False})
    await kit.settled()
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine, incident.job) == (
        IncidentClass.MACHINE_FAULT,
        "m1",
        JOB,
    )
