"""The map of the code in ``docs/code-map.md``: each package with the first line of its own docstring.

``python -m tests.code_map`` writes it; a test compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.generated import DOCS, Part, table
from tests.parsed import parsed

ROOT = Path(__file__).resolve().parents[1]
PART = Part(DOCS / "code-map.md", "map")
TOP = ("flows", "tasks", "policies", "storage", "deployments", "holdfast")


def packages() -> Iterator[tuple[str, str]]:
    """Folder and first line of each package, folders of one parent together."""
    for top in TOP:
        for init in sorted((ROOT / top).rglob("__init__.py")):
            if "migrations" in init.parts:
                continue
            folder = init.parent.relative_to(ROOT)
            line = (ast.get_docstring(parsed(init.read_text())) or "").partition("\n")[0]
            yield f"{folder}/", re.sub(r":\w+:`([^`]+)`", r"`\1`", line.replace("``", "`"))


def written_by_code() -> str:
    """The map as a table of markdown."""
    return table(("folder", "what is there"), *((f"`{folder}`", line) for folder, line in packages()))


if __name__ == "__main__":
    PART.write(written_by_code())
