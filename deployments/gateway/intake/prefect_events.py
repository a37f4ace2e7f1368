"""Signals that others emit as Prefect events: any flow or automation may report that a job or machine is not well.

    emit_event("holdfast.alert", resource={"prefect.resource.id": "holdfast.job.gpt"},
               payload={"kind": "external_service", "job": "gpt", "service": "tracker", "error": "timeout"})

Events are lost while the server is away (they are a way in beside others, never the only one).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from holdfast.deployments.gateway.api.sanitize import tidy
from holdfast.deployments.gateway.site import log
from holdfast.errors import HoldfastError, SettingsError
from holdfast.models.alert import Alert

if TYPE_CHECKING:
    from holdfast.deployments.gateway.intake.correlate import Correlator

EVENT = "holdfast.alert"
AGAIN_S = 2.0
_FIELDS = frozenset(Alert.model_fields) - {"evidence", "fingerprint", "at"}
_RESOURCE = "prefect.resource.id"
_JOB, _MACHINE = "holdfast.job.", "holdfast.machine."


def parse(
    identifier: str, occurred: datetime, resource: Mapping[str, str], payload: Mapping[str, Any], now: float
) -> Alert:
    """Parse an event as an alert; what the payload holds beside an alert's fields is evidence.

    Raises:
        SettingsError: the payload is no alert (named with the field and what was expected).
    """
    fields = {name: value for name, value in payload.items() if name in _FIELDS}
    more = payload.get("evidence")
    evidence = {name: value for name, value in payload.items() if name not in {*_FIELDS, "evidence"}}
    named = resource.get(_RESOURCE, "")
    if named.startswith(_JOB):
        fields.setdefault("job", named.removeprefix(_JOB))
    if named.startswith(_MACHINE):
        fields.setdefault("machine", named.removeprefix(_MACHINE))
    try:
        return Alert.model_validate(
            {
                **fields,
                "at": min(occurred.timestamp(), now),
                # The same event twice is one signal.
                "fingerprint": f"prefect:{identifier}"[:100],
                "evidence": {"source": "prefect", **evidence, **(more if isinstance(more, dict) else {})},
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"event {EVENT}: {where} = {first.get('input')!r}: {first['msg']}") from None


class PrefectEvents:
    """Listens to the server's events, and begins again whenever the connection ends."""

    def __init__(self, correlator: Correlator) -> None:
        self._correlator = correlator
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to listen, in the background."""
        self._task = asyncio.create_task(self._listen(), name="prefect events")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                await self._follow()
            except Exception as error:  # the server is away, or does not support events
                log.debug("prefect events: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> None:
        from prefect.events.clients import get_events_subscriber  # noqa: PLC0415  (brings Prefect along)
        from prefect.events.filters import EventFilter, EventNameFilter  # noqa: PLC0415

        wanted = EventFilter(event=EventNameFilter(name=[EVENT]))
        async with get_events_subscriber(filter=wanted, reconnection_attempts=0) as events:
            log.info("listening to prefect events named %s", EVENT)
            async for event in events:
                await self.take(str(event.id), event.occurred, dict(event.resource), event.payload)

    async def take(
        self, identifier: str, occurred: datetime, resource: Mapping[str, str], payload: Mapping[str, Any]
    ) -> None:
        """Hand one event on; a refused one is logged."""
        try:
            alert = parse(identifier, occurred, resource, payload, self._correlator.now())
            outcome = await self._correlator.accept(tidy(alert))
        except HoldfastError as error:
            log.warning("prefect event %s refused: %s", identifier, error)
            return
        log.info("prefect event %s: %s", identifier, outcome.outcome)
