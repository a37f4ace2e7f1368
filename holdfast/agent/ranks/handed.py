"""Files that an agent hands to a rank that waits for them: there as a whole, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from holdfast.agent import wire


def hand(path: str | Path, content: dict[str, Any]) -> None:
    """Write ``content``. It may hold a secret: readable by its owner only.

    Raises:
        UnavailableError: there is no room for it.
    """
    fresh = f"{path}.new"
    with (
        wire.room_for(path),
        os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file,
    ):
        file.write(json.dumps(content))
    os.rename(fresh, path)
