from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.testing.gateway_kit import Kit


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    """One gateway in this process."""
    made = Kit(tmp_path)
    yield made
    await made.close()
