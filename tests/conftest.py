"""Fast tests first: what is broken at a desk should not wait for a whole site to start."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests, then those with real processes, each in their order."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)
