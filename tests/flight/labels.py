"""Labels: the fault of each recording, and its rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"
WORLD = 8


def labels(of: str = "labels") -> dict[str, dict[str, Any]]:
    """Of all recordings of a file, by name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((HERE / f"{of}.yaml").read_text())
    return found
