"""The audit: what people ask for is in the ledger before it is done (who, why, from where), and again with its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import unquote

from fastapi import Request
from pydantic import Field

from holdfast.deployments.gateway.api.sanitize import clean
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.page.session import LoginSession
from holdfast.deployments.gateway.site import Site
from holdfast.errors import HoldfastError
from holdfast.models.base import Frozen
from holdfast.models.history import BY_HEADER, ActionState

UNNAMED = "an unnamed person"
_NAME_CHARS = 200

Result = TypeVar("Result")


class Asked(Frozen):
    """Requester and reason. The name of a person logged in on the status page is that of the login."""

    by: str = Field(UNNAMED, max_length=_NAME_CHARS)
    reason: str = Field("", max_length=2000)


class Act(Frozen):
    """One thing that a person asks for."""

    by: str
    via: str
    source: str
    act: str
    target: str
    reason: str


class Asker(Frozen):
    """The sender of a request to the gateway."""

    by: str
    """The name that the person gave."""
    via: str
    """``page`` or ``api``."""
    source: str
    """Address that the request came from."""

    def asks(self, act: str, target: str, reason: str = "") -> Act:
        """Return the audited act of this requester."""
        return Act(by=self.by, via=self.via, source=self.source, act=act, target=target, reason=clean(reason))


def who(request: Request, named: str = "") -> Asker:
    """Return the sender of a request: the login's name, else the one in its body, else in its header."""
    source = request.client.host if request.client else ""
    session: LoginSession | None = getattr(request.state, "session", None)
    if session:
        return Asker(by=clean(session.by), via="page", source=source)
    header = unquote(request.headers.get(BY_HEADER, ""))[:_NAME_CHARS]
    by = named if named not in ("", UNNAMED) else header
    return Asker(by=clean(by).strip() or UNNAMED, via="api", source=source)


async def audited(
    site: Site, asked: Act, act: Callable[[], Awaitable[Result]], say: Callable[[Result], str]
) -> Result:
    """Write it down, do it, and write down what came of it.

    One whose gateway was killed meanwhile keeps the state ``intent``.
    """
    ledger = site.ledger
    entry = await asyncio.to_thread(
        ledger.note_by_hand,
        asked.act,
        asked.target,
        by=asked.by,
        via=asked.via,
        reason=asked.reason,
        source=asked.source,
    )
    try:
        result = await act()
    except HoldfastError as error:
        await asyncio.to_thread(ledger.end_by_hand, entry.id, ActionState.FAILED, str(error))
        raise
    else:
        refused = isinstance(result, Outcome) and result.outcome is What.REFUSED
        state = ActionState.FAILED if refused else ActionState.DONE
        await asyncio.to_thread(ledger.end_by_hand, entry.id, state, say(result))
        return result
    finally:
        site.acts += 1


def describe(outcome: Outcome) -> str:
    """Describe the outcome in words."""
    return f"{outcome.outcome.value} {outcome.incident or ''} {outcome.message}".strip()
