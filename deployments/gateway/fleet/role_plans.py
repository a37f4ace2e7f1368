"""Plans for each machine: the replicas of all jobs' roles that it runs, and the members that it must reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import xxhash

from holdfast.models.job import Job
from holdfast.models.roles import Replica, ReplicaPlace, RolePlan, RolesOfJob, RoleSpec
from holdfast.policies.roles.decide import Decided, key_of

_THREADS, _GPUS = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"


def plans(jobs: Iterable[tuple[Job, Decided]], ends: Mapping[str, int]) -> dict[str, RolePlan]:
    """Return the plan of every machine of these jobs. Members, the long part, are digested once per job.

    Args:
        jobs: with where their replicas belong.
        ends: how often each of them ended, and was started again. Agents end the replicas of a stopped job by
            order, not by plan: the plan of the job that goes on must be another one for them, however alike.
    """
    parts: dict[str, list[RolesOfJob]] = {}
    digests: dict[str, str] = {}
    for job, decided in jobs:
        again = [str(ends[job.name])] if job.name in ends else []
        digests[job.name] = _digest(*again, *(each.model_dump_json() for each in decided.members))
        mine: dict[str, list[Replica]] = {}
        for place in decided.places.places:
            if not place.asked and key_of(place) not in decided.lingering:
                mine.setdefault(place.machine, []).append(_order(job, place))
        for machine in dict.fromkeys((*job.machines, *mine)):  # also those that a role has for itself
            # Not checked again for each machine: there may be a thousand, with a thousand members.
            part = RolesOfJob.model_construct(
                job=job.name,
                code_version=job.code_version,
                replicas=tuple(mine.get(machine, ())),
                members=decided.members,
            )
            parts.setdefault(machine, []).append(part)
    return {machine: _plan(found, digests) for machine, found in parts.items()}


def _plan(parts: list[RolesOfJob], digests: dict[str, str]) -> RolePlan:
    texts = (each.model_dump_json(exclude={"members"}) + digests[each.job] for each in parts)
    return RolePlan.model_construct(version=_digest(*texts), jobs=tuple(parts))


def _order(job: Job, place: ReplicaPlace) -> Replica:
    spec = job.spec.roles[place.role]
    return Replica(
        role=place.role,
        index=place.index,
        generation=place.generation,
        script=spec.script,
        args=spec.args,
        cpus=spec.cpus,
        gpus=spec.gpus,
        env={**_of_job(job, spec), **spec.env},
        restart=spec.restart,
        stop_grace_s=spec.stop_grace_s,
    )


def _of_job(job: Job, spec: RoleSpec) -> dict[str, str]:
    """Return the job's environment without what the role states by itself: ``gpus`` and ``cpus`` are not the ranks'."""
    own = {_THREADS} if spec.gpus is None else {_THREADS, _GPUS}
    return {name: value for name, value in job.spec.env.items() if name not in own}


def _digest(*texts: str) -> str:
    return xxhash.xxh3_64_hexdigest("\n".join(texts).encode())
