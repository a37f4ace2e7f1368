"""Schedule: look at the standbys, so that a broken one is never swapped into a job.

Each is inspected, computes the fixed product and the small model, and exchanges data with its neighbours; what
surely fails leaves the pool, within the limits of the breaker. One that flapped comes back when its checks passed for a
while.
"""

from prefect import flow

from holdfast.tasks.standby_checks import Inspection, check_standbys, publish_checks, remove_unfit


@flow(name="inspect-standbys")
async def inspect_standbys(inspection: Inspection = Inspection()) -> str:  # noqa: B008  (frozen)
    """Check all standbys, cordon the unfit, publish what was found."""
    verdict = await check_standbys(inspection)
    did = "dry run: nothing changed" if inspection.dry_run else await remove_unfit(verdict)
    await publish_checks("standby-checks", verdict, did)
    return did
