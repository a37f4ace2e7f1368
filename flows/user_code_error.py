"""Playbook: a traceback leads into the user's code.

No machine is at fault. Code that ran for days does not break by itself: what one rank raised is retried in place first.
New code goes back to the last good version, as does what several ranks raise again. When the same error came again
from the same saved state, that state is left behind instead: what the code reads may be at fault. A machine goes only
when a sure sign against it joins the incident.
"""

from holdfast.models.alert import Verdict
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import swap_in


@playbook(would="retry in place, or roll the code back to the last good version")
async def user_code_error(case: RecoveryContext) -> Recovered:
    """Recover a job whose own code raised."""
    await pause(case)
    tried = await escalate(case, Verdict())
    await evict(case, tried.verdict.suspects, tried.did)
    await swap_in(case)
    resumed = await resume(case)
    return Recovered(summary=f"{tried.did}; {resumed.summary}")
