"""Starting jobs: seats for their ranks, the first epoch, and nothing half done when it fails."""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.deployments.gateway.fleet.own_machines import claim
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import NoStandbyError, RefusedError, UnavailableError
from holdfast.models.checkpoint import Choice
from holdfast.models.job import Job, JobSpec, JobState, no_start
from holdfast.models.machine import MachineState
from holdfast.models.role_rules import own_machines
from holdfast.models.roles import TRAINER
from holdfast.operations import flaps
from holdfast.policies.counted import counted
from holdfast.policies.pool import elastic
from holdfast.policies.pool.machine_groups import group_of


async def submit(gateway: Gateway, spec: JobSpec, code_version: str) -> Job:
    """Record and start a job.

    Raises:
        NoStandbyError: too few machines stand by; nothing was recorded.
        RefusedError: a job of that name has not ended, or what it starts from is not there; nothing was recorded.
        HoldfastError: it could not be started; it is recorded as failed and holds no machine, at once or as soon as
            the ledger answers.
    """
    under_way = gateway.unstarted.submitting
    if spec.name in under_way:
        raise RefusedError(
            f"job {spec.name} is being submitted by another request: `holdfast status` shows it"
        )
    under_way.add(spec.name)
    try:
        return await _submit(gateway, spec, code_version)
    finally:
        under_way.discard(spec.name)


async def _submit(gateway: Gateway, spec: JobSpec, code_version: str) -> Job:
    ledger = gateway.site.ledger
    if wrong := no_start(spec):
        raise RefusedError(wrong)
    if spec.start_from is not None:
        spec = await gateway.acts.resolve(spec)
    standing_by = await _standing_by(gateway.site)
    own = own_machines(spec.roles)
    for_ranks = max(0, len(standing_by) - sum(own.values()))
    if size := elastic.first(spec, for_ranks):
        spec = spec.resized(
            size
        )  # an elastic job begins with what is there, or with `start` of its file, and grows
    else:
        coming = await asyncio.to_thread(ledger.machines, MachineState.PROVISIONING)
        more = (
            f" ({len(coming)} more start, or are under delivery checks: `holdfast status`)" if coming else ""
        )
        of_roles = "".join(f", and {number} for role {role} alone" for role, number in own.items())
        fields = " or `own_machines`" if own else ""
        raise NoStandbyError(
            f"job {spec.name} wants {counted(spec.machines, 'machine', 'machines')}{of_roles}, "
            f"{counted(len(standing_by), 'stands', 'stand')} by{more}: ask for "
            f"fewer (`machines`{fields} in the job file), or add some (deployment `resize-standby-pool`, or "
            "`holdfast up --machines N` where machines are processes of this host)"
        )
    await gateway.unstarted.end(spec.name)
    await asyncio.to_thread(ledger.add_job, spec, code_version)
    key = f"{spec.name}/code/{code_version}.tar.gz"
    await asyncio.to_thread(ledger.add_version, spec.name, code_version, key, "submitted")
    await asyncio.to_thread(ledger.set_pending_version, spec.name, None)
    try:
        await gateway.roles.submitted(spec.name)
        if TRAINER in spec.roles or own:
            await _seat_all(gateway.site, spec)
        await start(gateway, spec.name, "submitted")
    except Exception:
        try:
            await gateway.unstarted.fail(spec.name)
        except Exception:  # the gateway does it as soon as it can
            log.exception("job %s could not be started, and not be taken back yet", spec.name)
        raise
    return await gateway.site.job(spec.name)


async def _standing_by(site: Site) -> list[str]:
    """Return the standbys that a job may get now: those that come and go are left out when it takes them."""
    flapping = await asyncio.to_thread(flaps.of_the_pool, site.ledger, site.clock, site.policy)
    standbys = await asyncio.to_thread(site.ledger.machines, MachineState.STANDBY)
    return [each.name for each in standbys if each.name not in flapping]


async def start(gateway: Gateway, name: str, reason: str, choice: Choice | None = None) -> None:
    """Start the job's next epoch; what its ranks report meanwhile is looked at afterwards."""
    async with gateway.roles.before_trainer(await gateway.site.job(name)):
        gateway.correlator.starting.launching(name)
        try:
            await gateway.acts.launch(name, reason, choice)
        finally:
            # The next refresh reads it too: whatever the ledger does now, the job's alerts must not wait for ever.
            with contextlib.suppress(UnavailableError):
                await gateway.site.job(name)
            await gateway.correlator.starting.launched(name)


async def seat(site: Site, job: Job) -> None:
    """Give every slot of the job a machine that serves it, then its roles machines of their own if there are any left.

    Raises:
        NoStandbyError: too few stand by; nothing was changed.
    """
    await _seat_ranks(site, job)
    if own := own_machines(job.spec.roles):
        await claim(site, job, own, starts=True)


async def _seat_ranks(site: Site, job: Job) -> None:
    serving = {m.name for m in await asyncio.to_thread(site.ledger.machines, MachineState.ACTIVE, job.name)}
    empty = [slot for slot, name in enumerate(job.machines) if name not in serving]
    if not empty:
        return
    if job.state is JobState.STOPPED:
        # Machines that it is found to hold a while after its end are given back: the while begins again.
        await asyncio.to_thread(site.ledger.set_job, job.name, done_at=site.clock.now())
    excluded = await asyncio.to_thread(flaps.of_the_pool, site.ledger, site.clock, site.policy)
    pool = site.policy.spare_pool
    kinds = {group_of(job.machines[slot], pool) for slot in empty}
    standbys = await asyncio.to_thread(site.ledger.machines, MachineState.STANDBY)
    excluded += [each.name for each in standbys if group_of(each.name, pool) not in kinds]
    claimed = await asyncio.to_thread(site.ledger.claim_standbys, job.name, len(empty), excluded)
    machines = list(job.machines)
    for slot, machine in zip(empty, claimed, strict=True):
        machines[slot] = machine.name
    await asyncio.to_thread(site.ledger.set_job, job.name, machines=machines)


async def _seat_all(site: Site, spec: JobSpec) -> None:
    """Give a job that was never launched its machines, those of its ranks first: its roles may start before them.

    Raises:
        NoStandbyError: too few stand by; nothing was changed.
    """
    flapping = await asyncio.to_thread(flaps.of_the_pool, site.ledger, site.clock, site.policy)
    claimed = await asyncio.to_thread(site.ledger.claim_standbys, spec.name, spec.machines, flapping)
    names = [machine.name for machine in claimed]
    await asyncio.to_thread(site.ledger.set_job, spec.name, machines=names)
    for role, number in own_machines(spec.roles).items():
        await asyncio.to_thread(site.ledger.claim_standbys, spec.name, number, flapping, role=role)
    await site.refresh()
