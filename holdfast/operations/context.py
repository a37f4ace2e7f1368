"""The context of operations and steps: settings, ledger, policy, driver, store, HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx

from holdfast import drivers, secret, tls
from holdfast.agent.client import AgentClient, agents_client
from holdfast.clock import Clock, SystemClock
from holdfast.drivers.base import Driver
from holdfast.errors import UnavailableError
from holdfast.models.history import Action
from holdfast.models.machine import Machine
from holdfast.plugins.policy import site_policy
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate import changes
from holdfast.secret import Keys
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.code import versions as code
from holdfast.storage.ledger import Ledger
from holdfast.storage.objects import ObjectStore
from holdfast.tls import Tls

Act = Callable[[], Awaitable[dict[str, Any]]]


@dataclass
class Context:
    """The services that steps use. Made once per process, by the program that runs there."""

    settings: Settings
    clock: Clock = field(default_factory=SystemClock)
    known_ledger: Ledger | None = None
    """One that is open already; else it is opened."""
    _http: dict[int, tuple[httpx.AsyncClient, AsyncGenerator[None]]] = field(default_factory=dict)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of this site."""
        return self.known_ledger or Ledger(self.settings.database, self.clock)

    @cached_property
    def policy(self) -> Policy:
        """Thresholds, ladders and limits."""
        return site_policy(self.settings.policy_file)

    @cached_property
    def driver(self) -> Driver:
        """The driver that supplies machines."""
        return drivers.from_settings(self.settings)

    @cached_property
    def store(self) -> ObjectStore:
        """S3."""
        return objects.from_settings(self.settings)

    @cached_property
    def secret(self) -> Keys:
        """The secret shared with agents."""
        return secret.of(self.settings)

    @cached_property
    def tls(self) -> Tls:
        """How agents are called."""
        return tls.of(self.settings)

    @property
    def http(self) -> httpx.AsyncClient:
        """One client per event loop, closed when the loop is."""
        loop = id(asyncio.get_running_loop())
        if loop not in self._http:
            client = agents_client(self.tls.http())
            opened = self._open(loop, client)
            with contextlib.suppress(StopIteration):
                opened.__anext__().send(None)
            self._http[loop] = client, opened
        return self._http[loop][0]

    async def _open(self, loop: int, client: httpx.AsyncClient) -> AsyncGenerator[None]:
        """Close the client with its loop: tasks may end anywhere, but a loop that ends closes its generators."""
        try:
            yield
        finally:
            del self._http[loop]
            await client.aclose()

    def warm(self) -> None:
        """Prepare what the first step would otherwise wait for: parse the policy, open the ledger."""
        self.policy  # noqa: B018
        self.driver  # noqa: B018
        self.secret  # noqa: B018
        self.ledger.jobs()

    async def perform(self, action: Action, act: Act) -> dict[str, Any]:
        """Do what the ledger has as ``action``; return its result. A replay of an incident answers from its record."""
        return await act()

    def changed_lines(self, job: str, versions: tuple[str, str], file: str) -> Sequence[tuple[int, int]]:
        """Return the stretches of ``file`` that the second code version changed against the first.

        Raises:
            UnknownError: a version is not stored.
            UnavailableError: the store does not answer.
            ValueError: the file is too long to compare.
        """
        before, now = (code.text(self.store, job, version, file) for version in versions)
        return () if now is None else changes.changed_lines(before, now)

    def agent(self, machine: Machine) -> AgentClient:
        """Return the agent on ``machine``.

        Raises:
            UnavailableError: the machine has not registered an address.
        """
        if not machine.address:
            raise UnavailableError(f"machine {machine.name} has no agent registered")
        return AgentClient(machine.address, self.secret, http=self.http, tls=self.tls)
