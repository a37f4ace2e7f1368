"""All tests of this folder need a GPU that CUDA can use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.agent.site import AgentProcess
from tests.gpu.machine import machine

HERE = Path(__file__).parent


@cache
def usable() -> bool:
    """Return whether CUDA has a device, without initialising it: ranks are forked from some tests."""
    import torch  # noqa: PLC0415  (not imported where these tests are not selected)

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip where there is none, before any fixture is made."""
    if not usable():
        pytest.skip("no GPU that CUDA can use")


@pytest.fixture(scope="package")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """One agent for all tests here that need one: it takes seconds. It takes faults of its arithmetic."""
    with machine(tmp_path_factory.mktemp("agent"), HOLDFAST_ARM_FAULTS="1") as made:
        yield made
