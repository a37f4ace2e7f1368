"""The map of the code in ``docs/code-map.md``: each package with the first line that it says of itself.

``python -m tests.code_map`` writes it; a test compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "code-map.md"
BEGIN, END = "<!-- map: begin -->\n", "<!-- map: end -->\n"
TOP = ("flows", "tasks", "policies", "storage", "deployments", "holdfast")


def packages() -> Iterator[tuple[str, str]]:
    """Folder and first line of each package, folders of one parent together."""
    for top in TOP:
        for init in sorted((ROOT / top).rglob("__init__.py")):
            if "migrations" in init.parts:
                continue
            folder = init.parent.relative_to(ROOT)
            line = (ast.get_docstring(ast.parse(init.read_text())) or "").partition("\n")[0]
            yield f"{folder}/", re.sub(r":\w+:`([^`]+)`", r"`\1`", line.replace("``", "`"))


def table() -> str:
    """The map as a table of markdown."""
    rows = [f"| `{folder}` | {line} |" for folder, line in packages()]
    return "\n".join(["| folder | what is there |", "|---|---|", *rows, ""])


def written() -> str:
    """The table that the page has."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
