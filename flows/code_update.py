"""Playbook: an engineer ships a change that must take effect now (hot update).

Fetched while the job trains, held at a step boundary, switched in place, restarted; if the new code does not come up,
rolled back; if what ran before does not come up either, diagnosed as a crash is. Where it cannot be fetched (S3 is
away), the job trains on as it is.
A change that is not urgent is merged into the next restart instead, and needs no run of this playbook.
A machine that is lost meanwhile is replaced: its alerts join this incident, and open none of their own.
"""

from holdfast.tasks.fell_again import look_further
from holdfast.tasks.lost import replace_lost
from holdfast.tasks.pause import hold_at_boundary, pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.rollback import apply_update, fell_too, rollback, why_not_fetched


@playbook(would="switch the code at a step boundary")
async def code_update(case: RecoveryContext) -> Recovered:
    """Switch a running job to a new code version, in place."""
    if case.again and fell_too(case):
        # Neither version comes up: it is not the new one.
        silent = await pause(case)
        tried = await look_further(case)
        await replace_lost(case, silent)
        did = f"the update did not come up, nor did what ran before; {tried.summary}"
    elif case.again:
        silent = await pause(case)
        await replace_lost(case, silent)
        did = f"the update did not come up; rolled back to {await rollback(case, 'update failed')}"
    else:
        if why := await why_not_fetched(case):
            return Recovered(summary=why)
        await hold_at_boundary(case)
        silent = await pause(case)
        await replace_lost(case, silent)
        did = f"updated the code to {await apply_update(case)}"
    resumed = await resume(case)
    return Recovered(summary=f"{did}; {resumed.summary}")
