"""Schedule: size the standby pool from the site's own failure history.

Failures per day follow a binomial distribution; the pool covers its 99th percentile
(ByteDance, arXiv 2509.16293).
"""

from prefect import flow

from holdfast.tasks.pool import Sizing, estimate, publish, resize


@flow(name="resize-standby-pool")
async def resize_standby_pool(sizing: Sizing = Sizing()) -> str:  # noqa: B008  (frozen)
    """Estimate the daily failure rate, size the pool, provision or retire, publish the reasoning."""
    found = await estimate(sizing)
    did = "dry run: nothing changed" if sizing.dry_run else await resize(found)
    await publish(found, did)
    return did
