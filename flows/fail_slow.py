"""Playbook: the job trains, slower than it did.

While it trains, look at all stacks several times and vote for the parallel group that lags most often (ByteDance,
arXiv 2509.16293). Only then hold it at a step boundary. A fixed product on every GPU and transfers on every link find a
slow host (MegaScale); what they measure goes before the vote, as a rank also stands out that left a collective before
the others did. A machine that is slow is blocked for this job only; so is one whose ranks are slower than their peers
again after a restart. A slow job is not stopped to ask: without an approval or a standby it runs on. So it does where
many machines explain the pace, or where a search a while ago found none.
"""

from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import hold_at_boundary, pause
from holdfast.tasks.permit import permitted
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.slow import must_be_of_few, must_not_be_searched, vote_slow
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="vote for the slowest parallel group, evict its machines and swap in standbys")
async def fail_slow(case: RecoveryContext) -> Recovered:
    """Recover the pace of a job that became slow."""
    verdict = await vote_slow(case)
    must_be_of_few(case, verdict)
    must_not_be_searched(case, verdict)
    await permitted(case, verdict.suspects)
    await hold_at_boundary(case)
    await pause(case)
    verdict = await diagnose(case, voted=verdict)
    tried = await escalate(case, verdict, "evicted: slow")

    await evict(case, tried.verdict.suspects, "slow")
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{tried.summary}; {resumed.summary}", verdict=tried.verdict)
