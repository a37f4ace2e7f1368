"""The roles of a job as `holdfast status` and the page show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.models.job import Job
from holdfast.models.roles import TRAINER, ReplicaPlace, ReplicaState
from holdfast.policies.roles.crowding import crowded
from holdfast.policies.roles.decide import Decided, key_of


def rows(
    job: Job,
    decided: Decided | None,
    *,
    report: Callable[[ReplicaPlace], ReplicaState | None],
    shares: Mapping[str, float | None],
    own: Mapping[str, Sequence[str]],
    cores: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return a row for each role but the trainer.

    Args:
        job: the job.
        decided: where its replicas belong; None: that is not known yet.
        report: returns the newest report of a replica at its place.
        shares: share of the wanted time that the replicas of each role ran.
        own: machines that each role has for itself.
        cores: of each machine that reported them.
    """
    found = []
    for name, role in job.spec.roles.items():
        if name == TRAINER:
            continue
        places = [
            _place(each, report(each), lingers=decided is not None and key_of(each) in decided.lingering)
            for each in (decided.places.of(name) if decided is not None else ())
        ]
        mine = list(own.get(name, ()))
        found.append(
            {
                "name": name,
                "kind": role.kind.value,
                "replicas": role.replicas,
                "running": sum(1 for each in places if each["phase"] == "running"),
                "ready": decided is not None and name in decided.ready,
                "restarts": sum(each["restarts"] for each in places),
                "waits_for": list(decided.waits.get(name, ())) if decided is not None else [],
                "unplaced": len(decided.unplaced.get(name, ())) if decided is not None else 0,
                "share": shares.get(name),
                "crowded": crowded(name, role, mine if role.own_machines else job.machines, cores),
                "own_machines": {"wanted": role.own_machines, "names": mine},
                "places": places,
            }
        )
    return found


def _place(place: ReplicaPlace, report: ReplicaState | None, *, lingers: bool) -> dict[str, Any]:
    phase = "failed" if place.asked else report.phase.value if report is not None else "starting"
    here = place.machine not in place.tried  # where it failed they are counted already
    why = place.asked or (report.why if report is not None else "")
    if lingers:
        phase = "leaving"
        why = f"{place.machine} is out of service: it is placed elsewhere once it has surely ended there"
    return {
        "machine": place.machine,
        "phase": phase,
        "pid": report.pid if report is not None else 0,
        "address": report.address if report is not None else "",
        "restarts": place.restarts + (report.restarts if report is not None and here else 0),
        "why": why,
        "index": place.index,
        "generation": place.generation,
    }
