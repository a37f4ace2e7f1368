"""Alerts that open nothing: stale, of unknown names, malformed, hostile or too large."""

import json

import pytest

from holdfast.deployments.gateway.api.sanitize import tidy
from holdfast.models.alert import Alert, AlertKind
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch


def test_numbers_that_json_has_not_become_text() -> None:
    """One such alert would keep every list that has it from being answered."""
    alert = Alert(kind=AlertKind.RANK_EXIT, job=JOB, at=1.0, evidence={"value": [float("nan"), 2.5]})
    assert tidy(alert).evidence == {"value": ["nan", 2.5]}


async def test_stale_epoch_is_refused(kit: Kit) -> None:
    """Events of an earlier epoch are over."""
    await kit.running_job()
    start_epoch(kit.ledger, JOB)
    answer = await kit.crash(epoch=1, status=409)
    assert answer["error"] == "StaleError"
    assert not kit.incidents()


async def test_epoch_that_has_not_begun_is_refused(kit: Kit) -> None:
    """A report from the future is a sender's mistake."""
    await kit.running_job()
    assert (await kit.crash(epoch=7, status=409))["error"] == "StaleError"


async def test_stale_incarnation_is_refused(kit: Kit) -> None:
    """Events of an earlier incarnation of a machine are over."""
    await kit.running_job()
    answer = await kit.alert(409, kind="xid", machine="m0", incarnation="old", evidence={"xid": 79})
    assert answer["error"] == "StaleError"
    assert not kit.incidents()


async def test_resolved_alert_never_acts(kit: Kit) -> None:
    """A resolved alert is refused, whatever its fields are."""
    await kit.running_job()
    answer = await kit.alert(409, kind="xid", machine="m0", firing=False, evidence={"xid": 79})
    assert answer["error"] == "NotFiringError"
    assert not kit.incidents()


async def test_old_alert_without_epoch_is_refused(kit: Kit) -> None:
    """Nothing fences an alert that names neither epoch nor incarnation, but its age."""
    await kit.running_job()
    answer = await kit.alert(409, kind="hang", at=kit.clock.now() - 7200)
    assert answer["error"] == "NotFiringError"


async def test_alert_from_before_the_epoch_is_refused(kit: Kit) -> None:
    """A hang that was seen before the restart is not of the job as it runs now."""
    await kit.running_job()
    kit.clock.advance(60)
    start_epoch(kit.ledger, JOB)
    answer = await kit.alert(409, kind="hang", at=kit.clock.now() - 30)
    assert answer["error"] == "StaleError"


@pytest.mark.parametrize("named", [{"job": "nope"}, {"machine": "m99"}, {"rank": 99}, {"job": None}])
async def test_unknown_names_are_refused_clearly(kit: Kit, named: dict[str, object]) -> None:
    """An unknown job, machine or rank is 404 with a message."""
    await kit.running_job()
    answer = await kit.alert(404, **named)
    assert answer["error"] == "UnknownError"
    assert answer["message"]
    assert not kit.incidents()


async def test_malformed_alert_names_the_field(kit: Kit) -> None:
    """A wrong body is 422 in the same form as every other error."""
    answer = await kit.post("/v1/alerts", {"kind": "bang", "at": 1.0}, 422)
    assert answer["error"] == "SettingsError"
    assert "body.kind = 'bang'" in answer["message"]


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"kind=xid", "application/json", "the body is not JSON: Expecting value at character 0"),
        (b"", "application/json", "body is missing: give it"),
        (b'{"kind": "xid"}', "application/json", "body.at is missing: give it"),
        (b"[" * 100_000, "application/json", "the body is not JSON that can be read: it is nested too deep"),
        (
            b'"\xff"',
            "application/json",
            "the body is not JSON that can be read: it is nested too deep or not in",
        ),
        (b'{"kind": "xid"}', "text/plain", "the body is not taken for JSON: send it with the header"),
    ],
)
async def test_a_body_that_is_none_says_what_to_send(
    kit: Kit, content: bytes, kind: str, message: str
) -> None:
    """Also a request whose header does not say what it holds."""
    answer = await kit.http.post("/v1/alerts", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 422
    assert answer.json()["message"].startswith(message)


async def test_hostile_texts_are_data(kit: Kit) -> None:
    """NUL, half surrogates, deep nesting and markup in evidence neither break nor steer anything."""
    await kit.running_job()
    nested: dict[str, object] = {}
    inner = nested
    for _ in range(40):
        inner["x"] = inner = {}
    evidence = {"signal": "SIG\0KILL", "log": "\ud800<script>; DROP TABLE jobs", "nested": nested}
    body = {"kind": "rank_exit", "job": JOB, "machine": "m0", "rank": 0, "epoch": 1, "at": kit.clock.now()}
    answer = await kit.http.post(
        "/v1/alerts",
        content=json.dumps(body | {"evidence": evidence}),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    kept = kit.incidents()[0].alerts[0].evidence
    assert kept["signal"] == "SIG\ufffdKILL"
    assert kept["log"].endswith("<script>; DROP TABLE jobs")
    assert "nested too deep" in json.dumps(kept["nested"])


async def test_huge_evidence_is_refused(kit: Kit) -> None:
    """One alert may not fill the ledger."""
    await kit.running_job()
    answer = await kit.crash(status=413, log="x" * 100_000)
    assert answer["error"] == "AlertTooLargeError"
