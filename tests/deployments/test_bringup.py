"""What ``holdfast up`` prints while it waits."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.deployments.local import bringup, pidfile
from holdfast.deployments.local.services import Service
from holdfast.settings import Settings


@dataclass(frozen=True)
class Late(Service):
    """Answers when it was asked often enough."""

    asked: tuple[list[None], int] = ([], 0)

    def healthy(self) -> bool:
        self.asked[0].append(None)
        return len(self.asked[0]) > self.asked[1]


def test_what_is_missing_is_named_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first start takes a while: each line has the time, and what is not there yet."""
    monkeypatch.setattr(bringup, "TOLD_EVERY_S", 0.0)
    monkeypatch.setattr(bringup, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=lambda _: None))
    monkeypatch.setattr(pidfile, "running", lambda *_: None)
    done: Future[Any] = Future()
    done.set_result(None)
    services = [
        Late("s3", (), says="S3 server"),
        Late("prefect", (), says="Prefect server", asked=([], 2)),
    ]
    said: list[str] = []
    bringup._wait(Settings(home=tmp_path), services, {"2 machines": done}, said.append)
    assert said[:3] == [
        "  0 s: waiting for S3 server, Prefect server",
        "S3 server is up",
        "  0 s: waiting for Prefect server",
    ]
    assert said[-1] == "Prefect server is up"
