"""Shared by the processes of the example: a small policy, and messages over HTTP."""

import io
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor, nn

from holdfast import roles

WIDTH, ACTIONS = 8, 4


def policy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, ACTIONS))


def packed(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Answer requests on a thread of its own, and announce the port to the other roles."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            response = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((roles.host(), 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    roles.announce(server.server_port)


def ask(address: str, value: Any) -> Any:
    """Send a value, return the answer. Raises OSError when no process answers."""
    try:
        with urllib.request.urlopen(f"http://{address}", data=packed(value), timeout=5) as answer:
            return unpacked(answer.read())
    except (HTTPException, EOFError) as error:  # it was killed in the middle of its answer
        raise OSError(f"{address}: {error!r}") from error


def best_actions(states: Tensor) -> Tensor:
    """The actions that the reward worker rewards."""
    hidden = torch.randn(WIDTH, ACTIONS, generator=torch.Generator().manual_seed(1))
    return (states @ hidden).argmax(1)
