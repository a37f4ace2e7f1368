from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import secret
from holdfast.paths import shm_root
from tests.agent.gateway import FakeGateway
from tests.agent.site import AgentProcess


@pytest.fixture(scope="module")
def gateway() -> Iterator[FakeGateway]:
    fake = FakeGateway()
    yield fake
    fake.stop()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    secret.create(folder / "secret")
    yield folder
    shutil.rmtree(shm_root(folder), ignore_errors=True)


@pytest.fixture(scope="package")
def torch_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """One agent whose fork server has torch, for all tests here: it takes seconds. Each test has jobs of its own."""
    fake, folder = FakeGateway(), tmp_path_factory.mktemp("torch")
    secret.create(folder / "secret")
    started = AgentProcess(folder, "t0", fake)
    try:
        yield started.ready(150)
    finally:
        started.stop()
        fake.stop()
        shutil.rmtree(shm_root(folder), ignore_errors=True)


@pytest.fixture(scope="module")
def agent(home: Path, gateway: FakeGateway) -> Iterator[AgentProcess]:
    """An agent whose fork server loads next to nothing."""
    started = AgentProcess(home, "m0", gateway, HOLDFAST_PRELOAD="json")
    try:
        yield started.ready()
    finally:
        started.stop()
