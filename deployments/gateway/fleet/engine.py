"""Questions of the gateway to the engine that supplies machines, for what some drivers know besides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.deployments.gateway.site import log
from holdfast.drivers.base import Driver
from holdfast.errors import HoldfastError

Answer = TypeVar("Answer")


class EngineQuestion(Generic[Answer]):
    """One question. An engine that is away, or a gateway without its commands, is logged once per error."""

    def __init__(
        self, driver: Callable[[], Driver], ask: Callable[[Driver], Answer | None], unanswered: str
    ) -> None:
        """``ask`` returns None for a driver that cannot know; ``unanswered`` begins the log's line."""
        self._make = driver
        self._ask = ask
        self._unanswered = unanswered
        self._driver: Driver | None = None
        self._logged = ""

    async def answer(self) -> Answer | None:
        """Return what the driver knows; None: it cannot know, or does not answer now."""
        try:
            if self._driver is None:
                self._driver = await asyncio.to_thread(self._make)
            found = await asyncio.to_thread(self._ask, self._driver)
        except HoldfastError as error:
            if str(error) != self._logged:
                log.warning("%s: %s", self._unanswered, error)
            self._logged = str(error)
            return None
        self._logged = ""
        return found
