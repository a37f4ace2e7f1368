"""All tests of this folder need a GPU that CUDA can use."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

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


@pytest.fixture(autouse=True)
def _gpu() -> None:
    """Skip where there is none."""
    if not usable():
        pytest.skip("no GPU that CUDA can use")
