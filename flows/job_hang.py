"""Playbook: the job makes no progress, and nothing is logged.

Read all stacks while it hangs, and find the outlier's machine or the parallel group that the outliers share. A process
that the kernel does not let go or an agent that does not answer explains the hang: evict at once. A rank that only
stands out may have a reason that is no machine's fault (rank 0 prepares data): stop-time checks, then the ladder, which
retries in place and evicts the machine that stands out again, as it does with a process that a signal stopped, even
though some of the group may be healthy: fast isolation beats an exact cause (ByteDance, arXiv 2509.16293).
"""

from holdfast.models.alert import Verdict
from holdfast.tasks import standing
from holdfast.tasks.diagnose import diagnose, dump_stacks
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="read all stacks, evict the outliers' machines and swap in standbys")
async def job_hang(case: RecoveryContext) -> Recovered:
    """Recover a job that hangs."""
    verdict = await dump_stacks(case)
    await pause(case)
    if not verdict.sure:
        checked = Verdict() if verdict.explained else await diagnose(case)
        verdict = standing.proven(case, verdict, checked)
    tried = await escalate(case, verdict, f"explains the hang{standing.seen_at(verdict)}")

    await evict(case, tried.verdict.suspects, f"outlier in a hang{standing.seen_at(tried.verdict)}")
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{tried.summary}; {resumed.summary}", verdict=tried.verdict)
