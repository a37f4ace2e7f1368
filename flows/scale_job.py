"""Playbook: a person, a schedule or machines that came back change the number of machines of a job.

Machines are claimed while the job trains. Then it is held at a step boundary, restarted at its new size from the state
in memory. To zero: its newest step goes to S3, and its machines to the standby pool.
"""

from holdfast.tasks.fell_again import look_further
from holdfast.tasks.lost import evict_lost, replace_lost
from holdfast.tasks.pause import hold_at_boundary, pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resize import (
    claim,
    fell_with,
    holds_none,
    in_words,
    leave_at_zero,
    place,
    placed_back,
    size_before,
    take_up,
    to_zero,
)
from holdfast.tasks.resume import resume


@playbook(would="restart the job at a step boundary with another number of machines")
async def scale_job(case: RecoveryContext) -> Recovered:
    """Change the number of machines of a job."""
    machines, why_not = await take_up(case)
    if machines is None:
        return Recovered(summary=why_not)
    if holds_none(case) and not machines:
        leave_at_zero(case)
        return Recovered(summary="it is scaled to zero already")

    silent: tuple[str, ...] = ()
    if holds_none(case):
        did = await place(case, machines)
    elif case.again and placed_back(case):
        # Nor did it come up at the size that it had: the size is not why.
        silent = await pause(case)
        fell = fell_with(case)
        tried = await look_further(case)
        did = f"it did not come up with {in_words(machines)}, nor with {size_before(case)} ({fell}); {tried.summary}"
    elif case.again:
        silent = await pause(case)
        fell = fell_with(case)
        did = f"it did not come up with {in_words(machines)} ({fell}): {await place(case, size_before(case))}"
    else:
        await claim(case, machines)
        await hold_at_boundary(case)
        silent = await pause(case)
        if not machines:
            await evict_lost(case, silent)
            return Recovered(summary=await to_zero(case))
        did = await place(case, machines)
    await replace_lost(case, silent)
    resumed = await resume(case)
    return Recovered(summary=f"{did}; {resumed.summary}")
