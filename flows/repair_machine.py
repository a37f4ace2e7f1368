"""Flow: repair a machine that was evicted, by what its verdict asks for.

GPU reset or restart, the vendor's diagnosis, delivery checks with burn-in, then the standby pool; where that is not
enough, a ticket. The policy chooses the next step; the ledger records each step before it is done.
"""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from holdfast.tasks.repair import Repairing, finish, repaired, take_up


@flow(name="repair-machine", persist_result=False)
async def repair_machine(repairing: Repairing = Repairing()) -> State[Any]:  # noqa: B008  (frozen)
    """Do every step of the repairs that are due."""
    return finish([await repaired(held) for held in await take_up(repairing)])
