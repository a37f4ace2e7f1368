"""Start the repairs that were ordered, and restart those whose run died; the schedule does the same, later."""

from __future__ import annotations

import asyncio

from holdfast.deployments.gateway.runs.flow_runs import Runs
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError
from holdfast.models.repair import RepairState, Step
from holdfast.policies.pool.repair import enabled

FLOW = "repair-machine"


class RepairRuns:
    """Starts a run for each repair that no run works on; a ticket that did not arrive is left to the schedule."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site = site
        self._runs = runs
        self._asked: dict[int, int] = {}

    async def tick(self) -> None:
        """Run one round."""
        site = self._site
        if not enabled(site.policy.repair, site.settings.driver):
            return
        for repair in await asyncio.to_thread(site.ledger.repairs, state=RepairState.OPEN):
            begun = sum(step.times for step in repair.steps)
            sent = bool(repair.steps) and repair.steps[-1].step is Step.TICKET
            if sent or repair.until > site.clock.now() or self._asked.get(repair.id) == begun:
                continue
            try:
                # A run that died in the middle of a step left it begun: the next run has another key.
                key = f"repair:{repair.id}#{begun}"
                await self._runs.start(FLOW, {"repairing": {"repair": repair.id}}, key=key)
            except UnavailableError as error:
                log.warning("machine %s waits for its repair: %s", repair.machine, error)
            else:
                self._asked[repair.id] = begun
