"""An alert storm: one root among thousands of cascading failures, repetitions and mistakes; memory stays flat."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from typing import Any

from holdfast.deployments.gateway.intake import correlation_window, deduplicator
from holdfast.models.alert import IncidentClass
from holdfast.testing.gateway_kit import JOB, Kit

PER_S = 300
SECONDS = 4
MACHINES, RANKS = 16, 8
ROOT_AT = 100
"""Within the time that cascading failures wait for their root."""
GROWTH_BYTES = 512 << 10
"""A gateway that kept every alert of the second half would grow by more than twice as much."""


def storm(number: int, now: float) -> dict[str, Any]:
    """The alert of this number: most are cascading failures, many come again, some must be refused."""
    rank = number % (MACHINES * RANKS)
    machine = f"m{rank // RANKS}"
    padding = "x" * 1500
    match number % 20:
        case 3:
            return {"kind": "xid", "machine": machine, "firing": False, "evidence": {"xid": 79}}
        case 7:
            return {"kind": "rank_exit", "rank": rank, "machine": machine, "epoch": 0, "evidence": {}}
        case 11:
            return {"kind": "gpu_lost", "machine": machine, "incarnation": "of-an-earlier-life"}
        case 13:
            return {"kind": "hang", "job": f"unknown-{number}"}
        case 17:
            return {
                "kind": "host_fault",
                "machine": machine,
                "evidence": {"check": f"c{number}", "d": padding},
            }
        case _:
            evidence = {"cascade": True, "exit_code": 1, "log_tail": padding, "number": number}
            return {"kind": "rank_exit", "rank": rank, "machine": machine, "epoch": 1, "evidence": evidence}


async def send(kit: Kit, first: int, last: int, answers: Counter[str]) -> None:
    """Send alerts of these numbers at the storm's pace."""
    for number in range(first, last):
        kit.clock.advance(1 / PER_S)
        now = kit.clock.now()
        body = {"job": JOB, "at": now, "incarnation": "i1"} | storm(number, now)
        if number == ROOT_AT:
            body = {"kind": "gpu_lost", "job": JOB, "machine": "m7", "at": now, "incarnation": "i1"}
        answer = await kit.http.post("/v1/alerts", json=body)
        found = answer.json()
        answers[found.get("outcome") or found["error"]] += 1
        if number % 6 == 0:
            await kit.gateway.correlator.settle()


async def test_a_storm_is_one_incident_and_memory_stays_flat(kit: Kit) -> None:
    """300 alerts a second, some seconds long: the root decides, and nothing that must not act does."""
    await kit.running_job(machines=MACHINES, ranks=RANKS)
    answers: Counter[str] = Counter()
    half = PER_S * SECONDS // 2
    await send(kit, 0, half, answers)
    await kit.settled()
    gc.collect()
    tracemalloc.start()
    try:
        await send(kit, half, 2 * half, answers)
        await kit.settled()
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    incidents = kit.incidents()
    (incident,) = incidents
    assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, "m7")
    assert len(kit.runs.created) == 1
    assert sum(answers.values()) == 2 * half
    assert answers["NotFiringError"] == answers["UnknownError"] == 2 * half // 20
    assert answers["StaleError"] == 2 * (2 * half // 20)
    assert len(incident.alerts) <= deduplicator.PER_INCIDENT + correlation_window.PER_JOB
    assert len(kit.gateway.correlator.memory) <= deduplicator.REMEMBERED
    assert all(
        len(each.alerts) <= correlation_window.PER_JOB for each in kit.gateway.correlator._settling.values()
    )
    assert grown < GROWTH_BYTES
