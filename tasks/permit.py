"""Step: before a job that trains is stopped for an eviction: would one be allowed, and is there a machine for it?"""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task

from holdfast.errors import NoStandbyError
from holdfast.models.machine import MachineState
from holdfast.operations import evict as evicting
from holdfast.operations.provision import provision_for_now
from holdfast.operations.swap import excluded
from holdfast.policies.counted import counted
from holdfast.policies.pool.machine_groups import group_of
from holdfast.tasks import late
from holdfast.tasks.approve import ask_before_evicting, ask_before_looking
from holdfast.tasks.recovery_context import RecoveryContext


async def permitted(case: RecoveryContext, suspects: Sequence[str] = ()) -> None:
    """Ask breaker, pool and people while the job trains; without suspects for one machine that is yet to be found.

    Nothing is asked where the job stands already, nor for a machine that surely fails: it cannot run on with that one.

    Raises:
        LimitError: the breaker or a person forbids it.
        NoStandbyError: nothing could take the machine's place.
    """
    if case.stands or late.roots(case):
        return
    scope = case.ctx.policy.ladder.of(case.incident_class).scope
    job = case.job_now()
    evicting.ask_breaker(case.ctx, job, suspects or job.machines[:1], case.incident_id)
    await _replaceable(case, suspects)
    if suspects:
        await ask_before_evicting(case, suspects, scope)
    else:
        await ask_before_looking(case, scope)


@task(task_run_name="see whether a standby could take over")
async def _replaceable(case: RecoveryContext, suspects: Sequence[str]) -> None:
    ctx = case.ctx
    gone = suspects or case.job_now().machines[:1]
    unfit = {name for old in gone for name in excluded(ctx, old)}
    free = [each.name for each in ctx.ledger.machines(state=MachineState.STANDBY) if each.name not in unfit]
    if len(free) < len(gone):
        await provision_for_now(ctx, group_of(gone[0], ctx.policy.spare_pool))
        raise NoStandbyError(
            f"{counted(len(free), 'standby', 'standbys')} could take over for "
            f"{counted(len(gone), 'machine', 'machines')}: job {case.job} is not stopped for it"
        )
