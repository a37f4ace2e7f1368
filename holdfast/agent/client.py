"""Commands to one agent, over HTTP. Playbooks and the gateway use it; it retries only what did not arrive."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Hashable, Mapping
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote, urlencode

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast import errors
from holdfast.models import agent as wire
from holdfast.models.alert import Finding
from holdfast.models.rehearsal import Rehearsal
from holdfast.refusal import is_silence, reason_of
from holdfast.secret import Keys, keys
from holdfast.tls import PLAIN, Tls

Answer = TypeVar("Answer")

CONNECT_S = 5.0
"""To reach a host, for any request: time for a first packet that is lost twice (sent again after 1 s and 3 s)."""
_AGAIN = (httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
_AGAIN_AFTER_S = 0.05
_BY_NAME = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}


def raise_for(response: httpx.Response) -> None:
    """Convert an error answer back into the exception that the other side raised."""
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
        self,
        address: str,
        secret: str | Keys,
        *,
        http: httpx.AsyncClient | None = None,
        timeout_s: float = 5.0,
        tls: Tls = PLAIN,
    ) -> None:
        """``http`` must trust what ``tls`` does (:meth:`~holdfast.tls.Tls.http`)."""
        self.address = address
        tls.refresh()
        self._tls = tls
        # Not through a proxy: its answer for an agent that is gone would be taken for the agent's.
        self._http = http or httpx.AsyncClient(trust_env=False, **tls.http())
        self._owned = http is None
        self._headers = {"Authorization": keys(secret).header}
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owned:
            await self._http.aclose()

    async def state(
        self, *, timeout_s: float | None = None, shards: bool = True, saved: tuple[str, int] | None = None
    ) -> wire.AgentState:
        """Return all state of the agent: ranks, fences, and the shards, if they are asked for: they are most of it.

        ``saved``: a job and a step, and no other shards; an agent of an older release sends all.
        """
        path = "/v1/state" if shards else "/v1/state?shards=no"
        if saved is not None:
            job, step = saved
            path = f"/v1/state?{urlencode({'job': job, 'step': step})}"
        return await self._call("GET", path, None, wire.AgentState, timeout_s)

    async def contact(self, *, timeout_s: float) -> wire.Contact:
        """Return the agent's contact with the gateway."""
        return await self._call("GET", "/v1/contact", None, wire.Contact, timeout_s)

    async def fence(self, command: wire.Fence) -> list[int]:
        """Stop ranks up to an epoch and refuse such epochs; return the ranks that were stopped."""
        return await self._call(
            "POST", "/v1/fence", command, list[int], 6.0 + command.grace_s + command.switch_s
        )

    async def settle(self, command: wire.Fence, *, connect_s: float = CONNECT_S) -> wire.Settled:
        """Do the same as :meth:`fence`, then return what the machine has; that gets as much time as its state."""
        return await self._call(
            "POST",
            "/v1/settle",
            command,
            wire.Settled,
            9.0 + command.grace_s + command.switch_s,
            connect_s=connect_s,
        )

    async def open_rendezvous(self, command: wire.OpenRendezvous) -> wire.Rendezvous:
        """Host the store of an epoch."""
        return await self._call("POST", "/v1/rendezvous", command, wire.Rendezvous, 15.0)

    async def start(self, command: wire.Start) -> list[wire.RankState]:
        """Start this machine's ranks for one epoch; return once they are forked."""
        return await self._call("POST", "/v1/start", command, list[wire.RankState], 56.0 + command.switch_s)

    async def start_ahead(self, command: wire.Ahead) -> wire.Waiting:
        """Start this machine's ranks of the next epoch beside the present ones; return whether they wait already."""
        return await self._call("POST", "/v1/ahead", command, wire.Waiting, 60.0)

    async def mirror(self, command: wire.Mirror) -> None:
        """Have what ranks save sent to one more machine."""
        await self._call("POST", "/v1/mirror", command, type(None))

    async def hold(self, command: wire.Hold) -> None:
        """Hold the ranks at a step boundary, or let them go."""
        await self._call("POST", "/v1/hold", command, type(None))

    async def persist(self, command: wire.Persist) -> None:
        """Have shards of a step uploaded."""
        await self._call("POST", "/v1/persist", command, type(None))

    async def prove(self, command: wire.Prove) -> list[Rehearsal]:
        """Prove shards on the machine, or a checkpoint in S3; takes as long as reading them."""
        return await self._call("POST", "/v1/prove", command, list[Rehearsal], command.timeout_s + 5.0)

    async def prepare_code(self, command: wire.PrepareCode) -> None:
        """Have a code version checked out."""
        await self._call("POST", "/v1/code", command, type(None), 60.0)

    async def code(self, job: str, version: str) -> bytes:
        """Return the archive of a code version that the machine has checked out."""
        return (await self._send("GET", f"/v1/code/{job}/{version}", None, None)).content

    async def diagnose(self, command: wire.Diagnose) -> list[Finding]:
        """Run one stop-time check."""
        return await self._call("POST", "/v1/diagnose", command, list[Finding], command.timeout_s + 5.0)

    async def command(self, command: wire.Command) -> dict[str, Any]:
        """Run a command of another package on the machine; return its result."""
        return await self._call("POST", "/v1/command", command, dict[str, Any], command.timeout_s + 5.0)

    async def stacks(self, job: str, epoch: int) -> list[wire.StackDump]:
        """Return stacks of all rank processes of a job on this machine, and of their children."""
        return await self._call(
            "GET", f"/v1/stacks?job={job}&epoch={epoch}", None, list[wire.StackDump], 30.0
        )

    async def flight_records(self, job: str, epoch: int) -> list[wire.FlightRecord]:
        """Return the recorded collectives of a job's ranks on this machine."""
        return await self._call(
            "GET", f"/v1/flight?job={job}&epoch={epoch}", None, list[wire.FlightRecord], 10.0
        )

    async def first_steps(self, job: str, epoch: int, *, patience_s: float) -> wire.JobOnMachine:
        """Return the ranks of an epoch, once each made a step of it or one failed; at most ``patience_s`` later."""
        path = f"/v1/first-steps?job={job}&epoch={epoch}&patience_s={patience_s}"
        return await self._call("GET", path, None, wire.JobOnMachine, patience_s + 2.0)

    async def replay_results(self, job: str, epoch: int) -> list[wire.RankResult] | None:
        """Return how the ranks of a replay ended; None while some still run."""
        return await self._call(
            "GET", f"/v1/replay?job={job}&epoch={epoch}", None, list[wire.RankResult] | None
        )

    async def forget(self, command: wire.Fence, *, timeout_s: float | None = None) -> None:
        """Drop all that is left of a job that ended with this epoch; the fence stays."""
        fence = urlencode({"epoch": command.epoch, "incarnation": command.incarnation})
        await self._call("DELETE", f"/v1/jobs/{quote(command.job)}?{fence}", None, type(None), timeout_s)

    async def _call(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        answer: type[Answer] | object,
        timeout_s: float | None = None,
        *,
        connect_s: float = CONNECT_S,
    ) -> Answer:
        response = await self._send(method, path, body, timeout_s, connect_s=connect_s)
        try:
            found: Answer = _adapter(cast(Hashable, answer)).validate_json(response.content, extra="ignore")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            # Not as an agent that is gone: something answers there, and no machine is at fault for it.
            raise errors.RefusedError(
                f"agent at {self.address}: its answer to {method} {path.partition('?')[0]} is none that this release "
                f"knows ({'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']})"
            ) from None
        return found

    async def _send(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        timeout_s: float | None,
        *,
        connect_s: float = CONNECT_S,
    ) -> httpx.Response:
        limit_s = timeout_s or self._timeout_s

        def send() -> Awaitable[httpx.Response]:
            return self._http.request(
                method,
                f"{self._tls.scheme}://{self.address}{path}",
                content=None if body is None else body.model_dump_json(),
                headers=self._headers | {"Content-Type": "application/json"},
                timeout=httpx.Timeout(limit_s, connect=min(limit_s, connect_s)),
                extensions=self._tls.to_agent(),
            )

        try:
            try:
                response = await send()
            except _AGAIN:
                # Commands are safe to repeat, so one that did not arrive is sent again, once; also when the
                # connection, kept from an earlier command, was closed by the other side in that moment.
                await asyncio.sleep(_AGAIN_AFTER_S)
                response = await send()
        except httpx.HTTPError as error:
            raise _unanswered(self.address, error) from None
        raise_for(response)
        return response


def agents_client(tls: Mapping[str, Any]) -> httpx.AsyncClient:
    """Return a client to share among very many agents; ``tls`` as :meth:`holdfast.tls.Tls.http` has it."""
    from holdfast.agent.transport import AgentsClient  # noqa: PLC0415  (an agent calls few others)

    return AgentsClient(**tls)


@functools.cache
def _adapter(answer: Hashable) -> TypeAdapter[Any]:
    """Return a type's adapter, made once per kind: that of a list takes longer than reading a small one."""
    return TypeAdapter(cast(Any, answer))


def _unanswered(address: str, error: httpx.HTTPError) -> errors.UnavailableError:
    """Return the meaning of an error: no route to the host, no answer, a closed port, or a broken connection."""
    found = _meaning(address, error)
    found.address = address
    return found


def _meaning(address: str, error: httpx.HTTPError) -> errors.UnavailableError:
    if isinstance(error, httpx.ConnectError):
        if is_silence(error):
            return errors.SilentError(f"agent at {address}: {reason_of(error)}")
        # A certificate that is not trusted is reported as such.
        why = str(error) if "certificate" in str(error).lower() else "connection refused"
        return errors.UnavailableError(f"agent at {address}: {why}")
    silent = isinstance(error, httpx.TimeoutException)
    kind = errors.SilentError if silent else errors.UnavailableError
    return kind(f"agent at {address}: {type(error).__name__} {error}".rstrip())
