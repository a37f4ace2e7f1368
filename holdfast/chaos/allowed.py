"""Checks whether this job may be broken, and by which faults, before any fault is injected."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.chaos.fault_plan import COSTLY, DATABASE, MACHINES, RANKS, REPLICAS, SERVICES, Strike
from holdfast.deployments.local.services import embedded
from holdfast.errors import RefusedError
from holdfast.models.job import ENDED, Job, JobState, Mode
from holdfast.models.roles import TRAINER
from holdfast.policies.config.diagnosis import BreakerPolicy
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate import breaker
from holdfast.settings import Settings


def require_job(job: Job, policy: Policy) -> None:
    """Refuse a job that does not train, or that no playbook would recover.

    Raises:
        RefusedError: the message names which of the two.
    """
    if job.state is not JobState.RUNNING:
        raise RefusedError(f"job {job.name!r} is {job.state}, expected running: nothing would be learnt.")
    modes = {"its mode": job.spec.mode, "the policy's default mode": policy.modes.default}
    modes |= {f"the mode of class {name}": mode for name, mode in policy.modes.by_class.items()}
    for what, mode in modes.items():
        if mode is not Mode.ACT:
            raise RefusedError(
                f"job {job.name!r}: {what} is {mode}, so nothing would be recovered, and a fault would end the job. "
                "Expected act."
            )


def require_faults(
    settings: Settings, jobs: Collection[Job], name: str, groups: Sequence[tuple[str, ...]], standbys: int
) -> None:
    """Refuse faults that this site does not have, or that would hit a job that was not named.

    Raises:
        RefusedError: names the fault.
    """
    named = next((job for job in jobs if job.name == name), None)
    here = {service.name for service in embedded(settings)}
    others = [job.name for job in jobs if job.name != name and job.state not in ENDED]
    for fault in dict.fromkeys(each for group in groups for each in group):
        if fault in REPLICAS and named is not None and not named.spec.roles.keys() - {TRAINER}:
            raise RefusedError(
                f"{fault}: job {name!r} has no roles beside its ranks; leave it out of --faults."
            )
        if fault in (*RANKS, *REPLICAS, *MACHINES) and settings.driver != "local":
            raise RefusedError(
                f"{fault}: machines of driver {settings.driver} run on other hosts; run `holdfast inject` there, or "
                "leave it out of --faults."
            )
        if fault in SERVICES and (service := fault.partition("-")[2]) not in here:
            raise RefusedError(f"{fault}: this site has no {service} of its own; leave it out of --faults.")
        if fault == DATABASE and settings.database_url:
            raise RefusedError(
                f"{fault}: the ledger is not a SQLite file of this site; leave it out of --faults."
            )
        if fault in (*SERVICES, DATABASE) and others:
            raise RefusedError(
                f"{fault} would hit {', '.join(others)} too, which was not named; stop it first."
            )
        if fault in COSTLY and not standbys:
            raise RefusedError(f"{fault} costs the job a machine, and no standby is there to take its place.")


def require_breaker(plan: Sequence[Strike], machines: int, fleet_size: int, policy: BreakerPolicy) -> None:
    """Refuse a plan that costs the job more machines than the site's breaker lets it replace.

    Args:
        plan: the faults with their times.
        machines: of the job.
        fleet_size: machines that exist.
        policy: the site's limits.

    Raises:
        RefusedError: names the fault after which the job would stand until a person looks, and the limit.
    """
    lost: list[float] = []
    for strike in plan:
        wanted = sum(fault in COSTLY for fault in strike.faults)
        for answer in (
            breaker.may_evict_from_job(lost, wanted, machines, strike.at_s, policy),
            breaker.may_evict(lost, wanted, fleet_size, strike.at_s, policy),
        ):
            if wanted and not answer.allowed:
                raise RefusedError(
                    f"{'+'.join(strike.faults)} at {strike.at_s:.0f} s: no machine would be replaced any more "
                    f"({answer.reason}), and the job would stand. Name fewer of {', '.join(COSTLY)}, take a longer "
                    "--every, or raise the limit for the game day (`breaker` of the policy file)."
                )
        lost += [strike.at_s] * wanted
