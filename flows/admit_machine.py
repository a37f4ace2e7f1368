"""Schedule: delivery checks. A machine that waits for admission joins the standby pool when all of them pass.

Newly delivered and repaired machines fail more often than others: they are inspected, computed on and connected
with a good machine before any job may have them.
"""

from prefect import flow

from holdfast.tasks.standby_checks import Admission, admit, check_applicants, publish_checks


@flow(name="admit-machine")
async def admit_machine(admission: Admission = Admission()) -> str:  # noqa: B008  (frozen)
    """Check machines that wait, admit those that pass, cordon those that surely fail."""
    verdict = await check_applicants(admission)
    did = "dry run: nothing changed" if admission.dry_run else await admit(verdict)
    await publish_checks("admission-checks", verdict, did)
    return did
