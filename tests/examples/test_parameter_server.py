"""Messages of the examples with roles: a server that dies in the middle of one counts as away."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.torch
EXAMPLES = Path(__file__).parents[2] / "examples"


def module(example: str, name: str = "common") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", EXAMPLES / example / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("example", ["parameter_server", "rl"])
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"not http at all\r\n\r\n",
    ],
    ids=["nothing", "half a head", "no body", "half a body", "something else"],
)
def test_a_server_that_is_killed_in_its_answer_is_away(example: str, answer: bytes) -> None:
    """The trainer that asks goes on, and asks again."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(OSError):  # noqa: PT011  (whatever its message is)
            module(example).ask(f"127.0.0.1:{server.getsockname()[1]}", {"pull": True})
        thread.join()


def test_a_server_whose_answer_was_lost_counts_as_filled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it shows its values: until then nothing is reported."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "parameter_server"))
    monkeypatch.setenv("SERVERS", "2")
    monkeypatch.delitem(sys.modules, "common", raising=False)
    train = module("parameter_server", "train")
    known = torch.arange(4.0)
    taken: dict[int, torch.Tensor] = {}

    def push(index: int, **what: Any) -> None:
        taken[index] = what["values"]
        raise TimeoutError("no answer in time")

    monkeypatch.setattr(train, "push", push)
    with pytest.raises(TimeoutError):
        train.settle([known[:2], None], known, 6)
    assert taken.keys() == {1}
    assert "filled" not in capsys.readouterr().out
    train.settle([known[:2], taken[1]], known, 7)
    assert capsys.readouterr().out == "server 1 filled: it has values at step 7\n"
    monkeypatch.delitem(sys.modules, "common", raising=False)
