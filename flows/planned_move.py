"""Playbook: a job leaves a machine that still works (maintenance, preemption, a drain, a precursor, by hand).

A standby is checked and brought up beside the training: code, newest shards, the next epoch's ranks up to their
restore. Then all ranks stop at one step boundary, the machine is swapped, and they go on: no step is done again.
A fault meanwhile goes before: its own playbook takes over.
"""

from holdfast.errors import LimitError
from holdfast.tasks.fell_again import look_further
from holdfast.tasks.move import bring, choose
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in
from holdfast.tasks.switch import hand_back, switch


@playbook(would="bring a standby up beside the training and switch to it at a step boundary")
async def planned_move(case: RecoveryContext) -> Recovered:
    """Move a job off a machine that is to be left."""
    if case.again or case.round:
        # The ranks are stopped and did not come up: from here on it is a recovery like any other.
        await pause(case)
        further = f"; fell again: {(await look_further(case)).summary}" if case.again else ""
        await swap_in(case)
        resumed = await resume(case)
        if case.machine in case.job_now().machines:  # it got its place back, or was never left
            raise LimitError(f"not moved: {case.machine} serves {case.job} still; {resumed.summary}")
        return Recovered(
            summary=f"moved with a restart{further}; {resumed.summary}; left machine: {await hand_back(case)}"
        )

    standby = await choose(case)
    brought = await bring(case, standby)
    switched = await switch(case, standby, brought)
    if not switched.moved:
        raise LimitError(f"not moved: {switched.why_not}; {switched.summary}")
    fate = await hand_back(case)
    await replenish(case)
    return Recovered(summary=f"{standby} for {case.machine}: {switched.summary}; {case.machine}: {fate}")
