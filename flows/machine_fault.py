"""Playbook: a machine is surely at fault (its GPU is lost, its agent or the whole machine is gone).

No diagnosis: evict at once, swap in a standby, restore its shards from the peer, go on. A machine that restarted since
it was accused stays, unless it came and went too often: a fault that lasts is found again. Where the job falls again
before its first step, the machine was not the only cause: diagnose, and climb the ladder of a crash.
"""

from holdfast.errors import LimitError
from holdfast.models.missing import Missing
from holdfast.tasks import late, returned
from holdfast.tasks.evict import evict
from holdfast.tasks.fell_again import look_further
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="evict the machine at once and swap in a standby")
async def machine_fault(case: RecoveryContext) -> Recovered:
    """Recover a job whose machine is surely at fault."""
    silent = await pause(case)
    flapping = returned.flapping(case)
    faulty = (*late.accused(case), *silent, *flapping)
    if not faulty and not case.returned and not returned.reached_again(case):
        raise LimitError(
            "the alerts accuse no machine (any more), or more than may be evicted at once", Missing.EVICTIONS
        )

    tried = None
    if case.again and not silent:
        tried = await look_further(case, faulty)
    else:
        await evict(case, faulty, "; ".join([*flapping.values(), *case.incident.reasons]) or "machine fault")
    swapped = await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    further = f"; fell again: {tried.summary}" if tried else ""
    verdict = tried.verdict if tried else None
    return Recovered(
        summary=f"{returned.in_words(case, swapped)}{further}; {resumed.summary}", verdict=verdict
    )
