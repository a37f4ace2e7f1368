"""Commands to one agent, over HTTP. Playbooks and the gateway use it; it retries only what did not arrive."""

from __future__ import annotations

from typing import Self, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from holdfast import errors
from holdfast.models import agent as wire
from holdfast.models.alert import Finding

Answer = TypeVar("Answer")

_BY_NAME = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}


def raise_for(response: httpx.Response) -> None:
    """Turn an error answer back into the exception that the other side raised."""
    if response.is_success:
        return
    try:
        body = response.json()
        kind, message = str(body["error"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        kind, message = "", response.text[:500]
    raised = _BY_NAME.get(kind)
    if raised is None or not issubclass(raised, errors.HoldfastError):
        raised = {401: errors.UnauthorizedError, 404: errors.UnknownError, 409: errors.RefusedError}.get(
            response.status_code, errors.UnavailableError
        )
    raise raised(message)


class AgentClient:
    """One agent. Use as an async context manager, or share ``http`` among many agents."""

    def __init__(
        self, address: str, secret: str, *, http: httpx.AsyncClient | None = None, timeout_s: float = 5.0
    ) -> None:
        self.address = address
        self._http = http or httpx.AsyncClient()
        self._owned = http is None
        self._headers = {"Authorization": f"Bearer {secret}"}
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owned:
            await self._http.aclose()

    async def state(self, *, timeout_s: float | None = None) -> wire.AgentState:
        """All that the agent knows: ranks, shards, fences."""
        return await self._call("GET", "/v1/state", None, wire.AgentState, timeout_s)

    async def fence(self, command: wire.Fence) -> list[int]:
        """Stop ranks up to an epoch and refuse such epochs; returns the ranks that were stopped."""
        return await self._call("POST", "/v1/fence", command, list[int], 10.0)

    async def open_rendezvous(self, command: wire.OpenRendezvous) -> wire.Rendezvous:
        """Host the store of an epoch."""
        return await self._call("POST", "/v1/rendezvous", command, wire.Rendezvous, 15.0)

    async def start(self, command: wire.Start) -> list[wire.RankState]:
        """Start this machine's ranks for one epoch; returns once they are forked."""
        return await self._call("POST", "/v1/start", command, list[wire.RankState], 60.0)

    async def hold(self, command: wire.Hold) -> None:
        """Hold the ranks at a step boundary, or let them go."""
        await self._call("POST", "/v1/hold", command, type(None))

    async def fetch_shard(self, command: wire.FetchShard) -> None:
        """Pull a shard from another machine's memory into this one's."""
        await self._call("POST", "/v1/shards/fetch", command, type(None), 60.0)

    async def prepare_code(self, command: wire.PrepareCode) -> None:
        """Have a code version checked out."""
        await self._call("POST", "/v1/code", command, type(None), 60.0)

    async def diagnose(self, command: wire.Diagnose) -> list[Finding]:
        """Run one stop-time check."""
        return await self._call("POST", "/v1/diagnose", command, list[Finding], command.timeout_s + 5.0)

    async def stacks(self, job: str, epoch: int) -> list[wire.StackDump]:
        """Stacks of all rank processes of a job on this machine, and of their children."""
        return await self._call(
            "GET", f"/v1/stacks?job={job}&epoch={epoch}", None, list[wire.StackDump], 30.0
        )

    async def replay_results(self, job: str, epoch: int) -> list[wire.RankResult] | None:
        """How the ranks of a replay ended; None while some still run."""
        return await self._call(
            "GET", f"/v1/replay?job={job}&epoch={epoch}", None, list[wire.RankResult] | None
        )

    async def forget(self, job: str) -> None:
        """Drop all shards and fences of a job that ended."""
        await self._call("DELETE", f"/v1/jobs/{job}", None, type(None))

    async def _call(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        answer: type[Answer] | object,
        timeout_s: float | None = None,
    ) -> Answer:
        # Commands are safe to repeat, so one that did not arrive is sent again, once.
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(httpx.ConnectError),
            stop=stop_after_attempt(2),
            wait=wait_fixed(0.05),
            reraise=True,
        ):
            with attempt:
                try:
                    response = await self._http.request(
                        method,
                        f"http://{self.address}{path}",
                        content=None if body is None else body.model_dump_json(),
                        headers=self._headers | {"Content-Type": "application/json"},
                        timeout=timeout_s or self._timeout_s,
                    )
                except httpx.ConnectError:
                    if attempt.retry_state.attempt_number < 2:
                        raise
                    raise errors.UnavailableError(f"agent at {self.address}: connection refused") from None
                except httpx.HTTPError as error:
                    raise errors.UnavailableError(
                        f"agent at {self.address}: {type(error).__name__} {error}".rstrip()
                    ) from None
        raise_for(response)
        return TypeAdapter(answer).validate_json(response.content)  # type: ignore[arg-type]
