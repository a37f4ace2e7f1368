"""Playbook: a service outside of the job failed it: remote storage, a name server, a license server.

No machine and no code of the job is at fault, so none is touched: wait until the service answers, then start again. A
machine goes only when a sure sign against it joins the incident.
"""

from holdfast.models.alert import Verdict
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.services import await_healthy
from holdfast.tasks.standby import swap_in


@playbook(would="wait for the service, then start again in place")
async def external_service(case: RecoveryContext) -> Recovered:
    """Recover a job that an outside service failed."""
    await pause(case)
    waited = await await_healthy(case)
    tried = await escalate(case, Verdict())
    await evict(case, tried.verdict.suspects, tried.did)
    await swap_in(case)
    resumed = await resume(case)
    return Recovered(summary=f"{waited}{tried.did}; {resumed.summary}")
