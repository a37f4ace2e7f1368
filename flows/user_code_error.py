"""Playbook: a traceback leads into the user's code.

No machine is at fault: roll back to the last good code version and go on; with none left, ask a human.
"""

from holdfast.tasks.case import Case
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.resume import resume
from holdfast.tasks.rollback import rollback


@playbook(would="roll the code back to the last good version")
async def user_code_error(case: Case) -> Recovered:
    """Recover a job whose own code raised."""
    await pause(case)
    version = await rollback(case, "; ".join(case.incident.reasons) or "error in user code")
    resumed = await resume(case)
    return Recovered(summary=f"rolled the code back to {version}; {resumed.said}")
