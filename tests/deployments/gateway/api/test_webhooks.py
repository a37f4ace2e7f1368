"""Alerts of Alertmanager and of Grafana's contact points over HTTP."""

from typing import Any

from holdfast.deployments.gateway.intake import alertmanager
from holdfast.models.alert import IncidentClass
from holdfast.testing.gateway_kit import JOB, Kit


def _webhook(*alerts: dict[str, Any], status: str = "firing") -> dict[str, Any]:
    return {"version": "4", "groupKey": "g", "status": status, "receiver": "holdfast", "alerts": list(alerts)}


def _xid(kit: Kit, machine: str = "m1", **changes: Any) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": "Xid", "job": JOB, "machine": machine, "xid": "79"},
        "annotations": {"summary": "GPU fell off the bus"},
        "startsAt": "1970-01-12T13:46:40Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "abc",
    } | changes


async def test_alertmanager_alert_opens_an_incident(kit: Kit) -> None:
    """A firing alert of the webhook is an alert like any other."""
    await kit.running_job()
    answer = await kit.post("/v1/alerts/alertmanager", _webhook(_xid(kit)))
    await kit.settled()
    assert answer["results"][0]["outcome"] == "opened"
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, "m1")


async def test_alertmanager_repetition_is_a_duplicate(kit: Kit) -> None:
    """Alertmanager repeats what fires: one episode is one signal, also after the incident."""
    await kit.running_job()
    await kit.post("/v1/alerts/alertmanager", _webhook(_xid(kit)))
    answer = await kit.post("/v1/alerts/alertmanager", _webhook(_xid(kit)))
    assert answer["results"][0]["outcome"] == "duplicate"
    assert len(kit.incidents()) == 1


async def test_alertmanager_resolved_never_acts(kit: Kit) -> None:
    """Resolved by its own status, or by the group's."""
    await kit.running_job()
    body = _webhook(_xid(kit, status="resolved"), _xid(kit, status=""), status="resolved")
    answer = await kit.post("/v1/alerts/alertmanager", body)
    assert [one["error"] for one in answer["results"]] == ["NotFiringError", "NotFiringError"]
    assert not kit.incidents()


async def test_alertmanager_refusals_are_answered_one_by_one(kit: Kit) -> None:
    """Unknown kinds, jobs and numbers that are none are answered; the good one in between acts."""
    await kit.running_job()
    body = _webhook(
        _xid(kit, labels={"alertname": "DiskWillFill", "job": JOB}),
        _xid(
            kit,
            labels={"alertname": "Xid", "holdfast_job": "nope", "machine": "m1", "xid": "79"},
            fingerprint="b",
        ),
        _xid(kit, labels={"alertname": "Xid", "job": JOB, "machine": "m1", "rank": "\N{SUPERSCRIPT TWO}"}),
        _xid(kit),
    )
    answer = await kit.post("/v1/alerts/alertmanager", body)
    outcomes = [(one["outcome"], one.get("error")) for one in answer["results"]]
    assert outcomes == [
        ("refused", "SettingsError"),
        ("refused", "UnknownError"),
        ("refused", "SettingsError"),
        ("opened", None),
    ]


async def test_alertmanager_mixed_and_truncated_groups(kit: Kit) -> None:
    """Resolved alerts beside firing ones, in a group that was cut: the firing one acts, the rest is reported."""
    await kit.running_job()
    body = _webhook(
        _xid(kit, machine="m0", status="resolved", fingerprint="old"), _xid(kit), _xid(kit, fingerprint="abc")
    )
    answer = await kit.post("/v1/alerts/alertmanager", body | {"truncatedAlerts": 7})
    await kit.settled()
    assert [one["outcome"] for one in answer["results"]] == ["refused", "opened", "duplicate"]
    assert answer["truncated"] == 7
    assert kit.metric("alertmanager_truncated_alerts_total") == 7
    (incident,) = kit.incidents()
    assert incident.machine == "m1"


async def test_group_of_more_alerts_than_are_taken_loses_those_that_do_not_fire(kit: Kit) -> None:
    """Alertmanager does not send again what is refused (422): a switch with a thousand ports would be lost."""
    await kit.running_job()
    over = [_xid(kit, status="resolved", fingerprint=f"r{n}") for n in range(alertmanager.MAX_ALERTS + 3)]
    answer = await kit.post("/v1/alerts/alertmanager", _webhook(*over, _xid(kit)) | {"truncatedAlerts": 2})
    assert answer["results"][0]["outcome"] == "opened"
    assert (len(answer["results"]), answer["truncated"]) == (alertmanager.MAX_ALERTS, 6)


async def test_alert_of_a_contact_point_of_grafana_opens_an_incident(kit: Kit) -> None:
    """The same form with another version, and more fields."""
    await kit.running_job()
    more = {"valueString": "[ var='A' value=79 ]", "values": None, "silenceURL": "", "dashboardURL": ""}
    body = _webhook(_xid(kit, **more)) | {
        "version": "1",
        "orgId": 1,
        "title": "[FIRING:1]",
        "state": "alerting",
        "message": "",
        "truncatedAlerts": 0,
    }
    answer = await kit.post("/v1/alerts/alertmanager", body)
    assert answer["results"][0]["outcome"] == "opened"


async def test_another_version_of_the_webhook_is_refused(kit: Kit) -> None:
    """With the field, the value and what was expected."""
    answer = await kit.post("/v1/alerts/alertmanager", _webhook() | {"version": "5"}, 422)
    assert "body.version = '5'" in answer["message"]
    assert "'4'" in answer["message"]


async def test_hostile_labels_are_data(kit: Kit) -> None:
    """Label values end up in evidence as they are, and nowhere else."""
    await kit.running_job()
    labels = _xid(kit)["labels"] | {"evil": "{{ 7*7 }}'; DROP TABLE jobs; --\0", "epoch": "1"}
    await kit.post("/v1/alerts/alertmanager", _webhook(_xid(kit, labels=labels)))
    await kit.settled()
    evidence = kit.incidents()[0].alerts[0].evidence
    assert evidence["labels"]["evil"] == "{{ 7*7 }}'; DROP TABLE jobs; --\ufffd"
    assert "DROP TABLE" not in (await kit.http.get("/metrics")).text
