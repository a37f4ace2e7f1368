"""The job's lease, from a playbook's side: taken when the incident is taken up, renewed until the run is over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from holdfast.errors import HoldfastError, RefusedError, StaleError
from holdfast.models.alert import Incident
from holdfast.models.lease import HEAD_START, HEAD_START_S, JOB_LEASE_S
from holdfast.operations.context import Context
from holdfast.operations.once import lease_holder
from holdfast.tasks.recovery_context import RecoveryContext

TTL_S = JOB_LEASE_S
RENEW_S = 3.0
_LOOK_S = 0.02
_LONGEST_S = 2 * HEAD_START_S


async def take(ctx: Context, incident: Incident) -> str:
    """Take the lease of the incident's job for this run; returns the word that acts show.

    The gateway's head start is waited for: it takes no longer than its lease.

    Raises:
        RefusedError: another run acts on the job.
        StaleError: the incident is closed, or at a newer attempt.
    """
    run = str(flow_run.id or "by hand")
    holder = lease_holder()
    # By a clock that is never set: the lease's own may be set back.
    began = time.monotonic()
    while True:
        try:
            ctx.ledger.take_job(incident.id, incident.attempt, run, holder, TTL_S)
        except RefusedError:
            held = ctx.ledger.job_lease(incident.job)
            if held is not None and (held.run, held.incident_id) != (HEAD_START, incident.id):
                raise
            if time.monotonic() - began > _LONGEST_S:
                raise  # the next attempt takes over
            await asyncio.sleep(_LOOK_S)
        else:
            return holder


@contextlib.contextmanager
def kept(case: RecoveryContext) -> Iterator[None]:
    """Renew the case's lease in the background; give it up at the end, also of a run that is suspended."""
    over = threading.Event()
    log = get_run_logger()

    def renew() -> None:
        while not over.wait(RENEW_S):
            try:
                case.ctx.ledger.renew_job(case.job, case.lease, TTL_S)
            except StaleError as error:
                # The next act is refused: nothing else to do here.
                log.warning("%s", error)
                return
            except HoldfastError as error:
                log.warning("lease of job %s not renewed: %s", case.job, error)

    # A thread: steps may keep the event loop busy for longer than the lease lasts.
    renewing = threading.Thread(target=renew, name="lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join()
        with contextlib.suppress(HoldfastError):
            case.ctx.ledger.release_job(case.job, case.lease)
