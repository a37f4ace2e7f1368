"""Playbook: a GPU is so hot that the hardware slows it down.

The job trains on, slower: nothing is stopped at first. Lower the machine's clocks for a while to let it cool,
watch, and let the clocks go again, however this ends. If the heat comes back, while it is watched or within
the policy's memory, evict the machine.
"""

from holdfast.tasks.evict import evict
from holdfast.tasks.pause import hold_at_boundary, pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in

from hot_gpus.steps import lower_clocks, restore_clocks, watch


@playbook(would="lower the clocks, watch, and evict the machine if the heat comes back")
async def thermal_throttling(case: RecoveryContext) -> Recovered:
    """Recover the pace of a job whose GPU is held down by heat."""
    try:
        lowered = await lower_clocks(case)
        verdict = await watch(case)
    finally:
        await restore_clocks(case)
    if not verdict.suspects:
        return Recovered(
            summary=f"{lowered} for a while; cool since, training never stopped", verdict=verdict
        )

    await hold_at_boundary(case)
    await pause(case)
    await evict(case, verdict.suspects, "throttles although its clocks were lowered")
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(
        summary=f"{verdict.named} evicted: it throttles again; {resumed.summary}", verdict=verdict
    )
