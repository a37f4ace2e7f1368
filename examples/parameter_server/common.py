"""Shared by the processes of the example: the task, and messages over HTTP."""

import io
import os
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor

from holdfast import roles

WIDTH, SERVERS = 64, int(os.environ.get("SERVERS", "1"))
WANTED = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
"""The function to learn: y = WANTED * x."""


def loss(values: Tensor, inputs: Tensor) -> Tensor:
    return (inputs @ (values - WANTED)).square().mean()


def servers() -> dict[int, str]:
    """Where the servers are. Raises OSError while one is away."""
    found = roles.addresses("server")
    if len(found) < SERVERS:
        raise OSError(f"{len(found)} of {SERVERS} servers are there")
    return found


def pull() -> list[Tensor | None]:
    """The part of the parameters that each server has; None: it has just started. Raises OSError when one is away."""
    return [ask(servers()[index], {"pull": True})["values"] for index in range(SERVERS)]


def push(index: int, **what: Tensor) -> None:
    """Send a server its part: `values`, or a `gradient`. Raises OSError when it is away."""
    ask(servers()[index], what)


def ask(address: str, value: Any) -> Any:
    try:
        with urllib.request.urlopen(f"http://{address}", data=packed(value), timeout=5) as answer:
            return torch.load(io.BytesIO(answer.read()), weights_only=True)
    except (HTTPException, EOFError) as error:  # it was killed in the middle of its answer
        raise OSError(f"{address}: {error!r}") from error


def packed(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer requests, one after the other, and announce the port to the other roles."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                response = packed(answer(torch.load(asked, weights_only=True)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((roles.host(), 0), Handler)
    roles.announce(server.server_port)
    server.serve_forever()
