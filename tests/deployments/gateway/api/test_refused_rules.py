"""Alerts of Alertmanager that a wrong rule sends: Alertmanager drops the answer, so the log and a metric have it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing.gateway_kit import Kit


async def send(kit: Kit, status: str = "firing", **labels: str) -> dict[str, Any]:
    """One alert in a payload; the answer to it."""
    sent = {
        "status": status,
        "labels": {"alertname": "BoardDead", "kind": "gpu_lost"} | labels,
        "fingerprint": "f",
    }
    answer = await kit.post("/v1/alerts/alertmanager", {"version": "4", "status": status, "alerts": [sent]})
    await kit.settled()
    (result,) = answer["results"]
    assert isinstance(result, dict)
    return result


async def test_a_machine_in_another_spelling_is_logged_once(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """The alert repeats every minute; the line does not."""
    await kit.running_job()
    for _ in range(3):
        assert (await send(kit, machine="m0.corp.example"))["outcome"] == "refused"
    (line,) = [each for each in caplog.messages if "BoardDead" in each]
    assert "no machine 'm0.corp.example'" in line


async def test_an_unknown_kind_is_logged_and_counted(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """Under one label, whatever kind the rule names."""
    await kit.running_job()
    assert (await send(kit, kind="disk_will_fill", machine="m0"))["outcome"] == "refused"
    assert any("not a kind that Holdfast knows" in each for each in caplog.messages)
    assert kit.metric("alerts_total", kind="unknown", outcome="refused") == 1


async def test_the_answer_to_a_rule_without_machine_names_the_missing_label(kit: Kit) -> None:
    """Prometheus put its own `job` there: that job is not to be submitted."""
    await kit.running_job()
    assert "no label `machine`" in (await send(kit, job="node"))["message"]
    assert "no label `machine`" not in (await send(kit, holdfast_job="nope"))["message"]


async def test_a_resolved_alert_is_not_logged(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """The control: it never acts, and needs no one's attention."""
    await kit.running_job()
    assert (await send(kit, "resolved", machine="m0"))["outcome"] == "refused"
    assert not [each for each in caplog.messages if "BoardDead" in each]
