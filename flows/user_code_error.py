"""Playbook: a traceback leads into the user's code.

No machine is at fault: roll back to the last good code version and go on; with none left, ask a human. When the same
error came again from the same saved state, that state is left behind instead: what the code reads may be at fault.
"""

from holdfast.tasks.case import Case
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.poisoned import older_state
from holdfast.tasks.resume import resume
from holdfast.tasks.rollback import rollback


@playbook(would="roll the code back to the last good version")
async def user_code_error(case: Case) -> Recovered:
    """Recover a job whose own code raised."""
    await pause(case)
    if not (did := await older_state(case)):
        version = await rollback(case, "; ".join(case.incident.reasons) or "error in user code")
        did = f"rolled the code back to {version}"
    resumed = await resume(case)
    return Recovered(summary=f"{did}; {resumed.said}")
