"""Playbook: a rehearsal found that what the job saves would not come back. The job trains on, and is never touched.

Prove it again, and the copies; keep a checkpoint in S3 that is proven; then ask a person, with the path in the state.
When a later rehearsal succeeds, the incident is over by itself.
"""

from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.prove import keep_proven, prove_copies
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.unrestorable import judge


@playbook(would="prove the other copies, pin the newest checkpoint in S3 that is proven, and ask a person")
async def checkpoint_unrestorable(case: RecoveryContext) -> Recovered:
    """Find out what a job that cannot be restored as it is would fall back to."""
    copies = await prove_copies(case)
    kept = await keep_proven(case)
    return Recovered(summary=judge(case, copies, kept))
