"""Signals about jobs that a person holds."""

from __future__ import annotations

from typing import Any

from holdfast.models.alert import Alert
from holdfast.models.job import JobState
from holdfast.testing.gateway_kit import JOB, Kit, rank


async def _held(kit: Kit) -> None:
    await kit.running_job()
    kit.ledger.set_job(JOB, state=JobState.PAUSED)
    await kit.gateway.site.refresh()


def _xid(kit: Kit, **fields: Any) -> dict[str, Any]:
    known = {"kind": "xid", "job": JOB, "machine": "m1", "at": kit.clock.now(), "evidence": {"xid": 79}}
    return known | fields


async def _shown(kit: Kit) -> list[str]:
    (job,) = (await kit.get("/v1/status"))["jobs"]
    return list(job["kept_signals"])


async def test_it_is_kept_and_shown_and_does_nothing(kit: Kit) -> None:
    """The sender learns why; the same one again is not listed twice."""
    await _held(kit)
    for _ in range(2):
        answer = await kit.post("/v1/alerts", _xid(kit))
        assert answer["outcome"] == "kept"
        assert "held by a person" in answer["message"]
    await kit.gateway.on_hold.tick()
    assert [line for line in await _shown(kit) if line.startswith("m1: Xid 79")] == await _shown(kit)
    assert len(await _shown(kit)) == 1
    (job,) = (await kit.get("/v1/page/overview"))["jobs"]
    page = await kit.get(f"/v1/page/jobs/{JOB}")
    assert job["kept_signals"] == page["kept_signals"] == await _shown(kit)
    assert not kit.incidents()


async def test_it_outlives_the_gateway(kit: Kit) -> None:
    """The next gateway shows it, and acts on it when the hold ends."""
    await _held(kit)
    await kit.post("/v1/alerts", _xid(kit))
    await kit.restart()
    assert len(await _shown(kit)) == 1
    kit.clock.advance(86_400)
    kit.ledger.set_job(JOB, state=JobState.RUNNING)
    await kit.gateway.on_hold.tick()
    await kit.settled()
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == ("machine_fault", "m1")
    assert await _shown(kit) == []


async def test_a_persons_resume_hands_the_job_to_the_playbook_instead(kit: Kit) -> None:
    """The held ranks are not let go on a machine whose GPU is gone."""
    await _held(kit)
    await kit.beat("m1", [rank(2, 5, kit.clock.now(), paused=True)], epoch=1)
    await kit.post("/v1/alerts", _xid(kit))
    await kit.post(f"/v1/jobs/{JOB}/resume")
    await kit.settled()
    assert not [call for call in kit.acts.calls if call[0] in ("hold", "launch")]
    assert [each.incident_class.value for each in kit.incidents()] == ["machine_fault"]


async def test_a_resume_after_signals_that_open_nothing_lets_the_ranks_go(kit: Kit) -> None:
    """A hot GPU explains failures, and is none."""
    await _held(kit)
    await kit.beat("m1", [rank(2, 5, kit.clock.now(), paused=True)], epoch=1)
    await kit.post("/v1/alerts", _xid(kit, kind="gpu_throttled", evidence={}))
    await kit.post(f"/v1/jobs/{JOB}/resume")
    assert ("hold", JOB, "None") in kit.acts.calls
    assert not kit.incidents()


async def test_no_more_than_so_many_are_kept(kit: Kit) -> None:
    """An alert storm about a held job is bounded."""
    await _held(kit)
    for number in range(80):
        await kit.post(
            "/v1/alerts",
            _xid(kit, fingerprint=f"f{number}", kind="host_fault", evidence={"check": f"c{number}"}),
        )
    assert len(await _shown(kit)) == 64


async def test_what_is_over_by_then_does_not_act_after_a_change_of_gateway_either(kit: Kit) -> None:
    """Nor does what an earlier hold kept, which was acted on when that ended."""
    await _held(kit)
    await kit.post("/v1/alerts", _xid(kit))
    kit.gateway.on_hold.over(Alert.model_validate(_xid(kit)))
    await kit.settled()
    await kit.restart()
    assert await _shown(kit) == []


async def test_end_of_one_devices_signal_leaves_the_others(kit: Kit) -> None:
    """One that names no device ends all of its kind."""
    await _held(kit)

    def lost(**evidence: str) -> dict[str, Any]:
        return _xid(kit, kind="gpu_lost", evidence=evidence, fingerprint=evidence.get("device", ""))

    for device in ("GPU 1", "GPU 2"):
        await kit.post("/v1/alerts", lost(device=device))
    assert len(await _shown(kit)) == 2
    for over, left in ((lost(device="GPU 1"), 1), (lost(), 0)):
        kit.gateway.on_hold.over(Alert.model_validate(over))
        await kit.settled()
        assert len(await _shown(kit)) == left


async def test_a_hold_ends_when_its_ranks_go_on_and_not_before(kit: Kit) -> None:
    """Until then the ledger has the job as paused: a second resume lets the ranks go, whatever came of the first."""
    await _held(kit)
    await kit.post("/v1/alerts", _xid(kit, kind="gpu_throttled", evidence={}))
    assert not await kit.gateway.on_hold.end(await kit.gateway.site.job(JOB))
    assert kit.ledger.job(JOB).state is JobState.PAUSED
