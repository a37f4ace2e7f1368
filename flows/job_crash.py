"""Playbook: a rank exited, and nothing names a culprit.

Stop, look for a faulty machine in tiers, then climb the ladder: retry in place, roll the code back, replay.
Order of the rungs: ByteDance, arXiv 2509.16293, stop-time checks.
"""

from holdfast.errors import LimitError
from holdfast.models.alert import Rung
from holdfast.tasks.case import Case
from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.replay import replay
from holdfast.tasks.resume import resume
from holdfast.tasks.retry import climb
from holdfast.tasks.rollback import rollback
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="stop the job, diagnose, and climb the ladder from a retry in place")
async def job_crash(case: Case) -> Recovered:
    """Recover a job after a rank's exit whose cause is unknown."""
    await pause(case)
    verdict = await diagnose(case)
    did = "failed stop-time diagnosis"
    if not verdict.suspects:
        match await climb(case):
            case Rung.RETRY:
                did = "no machine at fault; retried in place"
            case Rung.ROLLBACK:
                did = f"rolled the code back to {await rollback(case, 'crashed again after a retry')}"
            case Rung.REPLAY:
                verdict = await replay(case)
                did = "accused by dual-phase replay" if verdict.suspects else "not reproduced by replay"
            case Rung.HUMAN:
                raise LimitError("retry, rollback and replay did not help")

    await evict(case, verdict.suspects, did)
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{verdict.named} {did}; {resumed.said}", verdict=verdict)
