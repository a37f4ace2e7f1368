"""Parts of the docs that code writes, between two comments of a page; tests compare them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


@dataclass(frozen=True)
class Part:
    """The text between ``<!-- name: begin -->`` and ``<!-- name: end -->`` on a page."""

    page: Path
    name: str

    @property
    def written(self) -> str:
        """The text that the page has."""
        return self._split()[1]

    def write(self, text: str) -> None:
        """Replace it."""
        before, _, after = self._split()
        self.page.write_text(before + self._begin + text + self._end + after)

    @property
    def _begin(self) -> str:
        return f"<!-- {self.name}: begin -->\n"

    @property
    def _end(self) -> str:
        return f"<!-- {self.name}: end -->\n"

    def _split(self) -> tuple[str, str, str]:
        before, begun, rest = self.page.read_text().partition(self._begin)
        inside, ended, after = rest.partition(self._end)
        assert begun, f"{self.page.name} has no {self._begin}"
        assert ended, f"{self.page.name} has no {self._end}"
        return before, inside, after


def table(*rows: tuple[str, ...]) -> str:
    """A table of markdown; the first row is its head."""
    head, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, *rest)).replace(
        "\n", f"\n|{'---|' * len(head)}\n", 1
    )
