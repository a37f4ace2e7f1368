"""The store in which ranks meet has room for all of them."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from holdfast.agent.ranks import rendezvous


class EndedError(Exception):
    """The store would serve from here on."""


def test_the_store_may_open_as_many_files_as_its_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of ten thousand ranks keeps a connection, and a process may open 1,024 files by default."""
    kept: list[int] = []

    def store(_host: str, port: int, _world: None, **given: Any) -> SimpleNamespace:
        kept.append(given["master_listen_fd"])
        return SimpleNamespace(port=port)

    def pause() -> NoReturn:
        raise EndedError

    distributed = SimpleNamespace(TCPStore=store)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr("signal.pause", pause)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
        with pytest.raises(EndedError):
            rendezvous.serve(str(tmp_path / "port"), "127.0.0.1")
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert int((tmp_path / "port").read_text()) > 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in kept:
            os.close(number)
