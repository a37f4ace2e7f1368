"""An act of an incident, done once: its intent is in the ledger before it begins, its result after it ended."""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.operations.context import Context
from holdfast.storage.ledger import Ledger


def lease_holder() -> str:
    """Return the word by which one use of this process holds a job's lease: no other use has it, here or elsewhere."""
    return f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Actor:
    """The one that acts for an incident."""

    ctx: Context
    incident_id: str
    job: str
    attempt: int
    lease: str
    """The name under which it holds the job's lease; every act shows it."""

    @property
    def ledger(self) -> Ledger:
        """The ledger for what it changes: refused with ``StaleError`` once another acts on the job."""
        return self.ctx.ledger.holding(self.incident_id, self.job, self.lease)

    async def once(
        self, kind: str, target: str, intent: dict[str, Any], act: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Do ``act`` unless this incident has it done already; return its result either way.

        The intent is in the ledger before ``act`` starts, the result after it returned: a run that was killed anywhere
        and begins again does only what is missing. ``act`` must itself be safe to repeat.

        Raises:
            StaleError: a newer attempt has taken this incident over, or another run the job's lease.
        """
        key = f"{kind}:{target}" if target else kind
        ledger = self.ledger
        action = ledger.begin(self.incident_id, self.attempt, key, kind, intent, self.lease)
        if action.state == "done":
            return action.result or {}
        try:
            result = await self.ctx.perform(action, act)
        except Exception as error:
            ledger.fail(self.incident_id, key, f"{type(error).__name__}: {error}")
            raise
        ledger.finish(self.incident_id, key, result)
        return result
