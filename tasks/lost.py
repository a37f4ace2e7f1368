"""Machines that are lost while a job is changed on purpose: they are taken out before it goes on.

Alerts that join such an incident open none of their own, so its playbook sees to the machines that they accuse.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.tasks import late
from holdfast.tasks.evict import evict
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.standby import swap_in


async def evict_lost(case: RecoveryContext, silent: Sequence[str]) -> None:
    """Evict machines of the job that alerts surely accuse by now, and those that the order to stop did not reach.

    Raises:
        LimitError: the breaker or a person forbids it; nothing was evicted.
        RecoveryError: a machine still lives after its eviction.
    """
    if lost := tuple(dict.fromkeys((*silent, *late.roots(case)))):
        await evict(case, lost, f"it did not answer when the job was stopped for a {case.incident_class}")


async def replace_lost(case: RecoveryContext, silent: Sequence[str]) -> None:
    """Do the same as :func:`evict_lost`, and fill the slots that lack a machine, also those of an earlier attempt.

    Raises:
        LimitError: the breaker or a person forbids it; nothing was evicted.
        RecoveryError: a machine still lives after its eviction.
        NoStandbyError: no machine came within the policy's time.
    """
    await evict_lost(case, silent)
    if not all(machine.serves(case.job) for machine in case.machines_now()):
        await swap_in(case)
