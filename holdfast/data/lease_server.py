"""Leases of splits over HTTP, for workers in any process on any machine."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast.data.lease_book import LeaseBook
from holdfast.errors import HoldfastError, SettingsError, UnauthorizedError
from holdfast.guarded_http import guarded, is_known
from holdfast.listen import authority, is_loopback, listen
from holdfast.secret import Keys

_STARTED_S = 30.0


class LeaseServer:
    """Serves a :class:`~holdfast.data.lease_book.LeaseBook` from a thread of this process.

    In the state given to the Session, it is saved with the step (on the rank that has it).
    """

    def __init__(
        self,
        book: LeaseBook,
        token: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: tuple[str, str] | None = None,
        allow_plaintext: bool = False,
    ) -> None:
        """Serve.

        Args:
            book: of the splits.
            token: what workers have to show.
            host: address to listen on.
            port: 0: a free one.
            certificate: files of the certificate and its key, for TLS.
            allow_plaintext: serve without TLS beyond this host.

        Raises:
            SettingsError: no token, or no TLS beyond this host.
            OSError: the port is in use.
        """
        if len(token) < 16 or token.split() != [token]:
            raise SettingsError(
                "LeaseServer: token: expected 16 characters or more without spaces (secrets.token_hex())"
            )
        if certificate is None and not allow_plaintext and not is_loopback(host):
            raise SettingsError(
                f"LeaseServer: host = {host} without certificate=: others could read the token there"
            )
        self.book = book
        self._keys = Keys(given=token)
        listener = listen(host, port, backlog=128)
        self.url = f"http{'s' if certificate else ''}://{authority(host, listener.getsockname()[1])}"
        """For workers."""
        config = uvicorn.Config(
            self._app(),
            log_config=None,
            access_log=False,
            lifespan="off",
            http=guarded(),
            ws="none",
            ssl_certfile=certificate[0] if certificate else None,
            ssl_keyfile=certificate[1] if certificate else None,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listener])),
            name="lease-server",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(_STARTED_S)
        self.book.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the book's position."""
        return self.book.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a position."""
        self.book.load_state_dict(state)

    def _app(self) -> Starlette:
        routes = [
            Route(f"/v1/{name}", self._route(act), methods=["POST"])
            for name, act in (
                ("grant", self._grant),
                ("commit", self._commit),
                ("give-back", self._give_back),
            )
        ]
        return Starlette(routes=routes)

    def _route(self, act: Any) -> Any:
        async def answer(request: Request) -> JSONResponse:
            try:
                if not self._keys.match(request.headers.get("authorization")):
                    raise UnauthorizedError("missing or wrong token")
                is_known(request.scope)
                return JSONResponse(await run_in_threadpool(act, await request.json()))
            except HoldfastError as error:
                return JSONResponse({"error": type(error).__name__, "detail": str(error)}, error.status)
            except (ValueError, KeyError, TypeError) as error:
                return JSONResponse({"error": "SettingsError", "detail": f"wrong request: {error}"}, 422)

        return answer

    def _grant(self, request: dict[str, Any]) -> dict[str, Any]:
        worker, have = str(request["worker"]), tuple(map(int, request["have"]))
        with self.book.together():  # a restored position grants the same tokens once more, in another run
            found, run, done = self.book.grant(worker, have), self.book.run, self.book.done
        if found is None:
            return {"done": done}
        lease, source, file, split = found
        when = file.partition.isoformat() if file.partition else None
        return {
            "run": run,
            "lease": asdict(lease),
            "source": source,
            "file": [file.path, file.nbytes, file.version, when],
            "split": list(split),
        }

    def _commit(self, request: dict[str, Any]) -> dict[str, Any]:
        self.book.commit(
            str(request["run"]), int(request["split"]), int(request["token"]), int(request["upto"])
        )
        return {}

    def _give_back(self, request: dict[str, Any]) -> dict[str, Any]:
        self.book.give_back(str(request["run"]), int(request["split"]), int(request["token"]))
        return {}
