"""Registries of log patterns: data files that map log lines to their meaning. Pure once read.

A line is data: it is only ever matched against these expressions, which have no nested repetition, and cut to a
length first. ``hints`` are plain words, one of which every match contains: text without any is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from holdfast.errors import SettingsError
from holdfast.models.alert import AlertKind
from holdfast.models.base import Frozen

KERNEL_LOG_FILE = Path(__file__).parents[1] / "kernel_log.yaml"
RANK_LOG_FILE = Path(__file__).parents[1] / "rank_log.yaml"
MAX_LINE = 16 << 10
"""Longer lines are cut before they are matched."""


class Pattern(Frozen):
    """One kind of line. Named groups of the expression become evidence."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    regex: str
    hints: tuple[str, ...] = Field(min_length=1)
    kind: AlertKind = AlertKind.RANK_LOG
    cause: str = Field("", description="What is at fault, in a word: gpu, nccl, peer, memory, ...")
    cascade: bool = False
    """It only reports that a peer is gone: the cause is elsewhere."""
    evidence: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """Evidence added to every match."""
    again_s: float = Field(0.0, ge=0)
    """Seconds after which the same fault of the same device is a new signal; 0: never."""
    multiple_of: int = Field(1, ge=1)
    """It matches only where the group ``value`` is a multiple: 65535 for sums of registers that read as all ones."""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression."""
        return re.compile(self.regex)

    def search(self, line: str) -> re.Match[str] | None:
        """Return where it is in ``line``; None: it is not."""
        if not any(hint in line for hint in self.hints) or (found := self.compiled.search(line)) is None:
            return None
        return found if self.multiple_of == 1 or int(found["value"]) % self.multiple_of == 0 else None


class Match(Frozen):
    """A line that a pattern recognised."""

    pattern: Pattern
    line: str
    groups: dict[str, str] = Field(default_factory=dict)


class Registry(Frozen):
    """One data file: its patterns, their source and date."""

    version: int
    source: str
    date: str
    patterns: tuple[Pattern, ...]

    @cached_property
    def _hints(self) -> re.Pattern[str]:
        hints = sorted({hint for pattern in self.patterns for hint in pattern.hints})
        return re.compile("|".join(map(re.escape, hints)))

    def worth(self, text: str) -> bool:
        """Return whether any pattern may match in ``text``: one quick pass."""
        return self._hints.search(text) is not None

    def match(self, line: str) -> Match | None:
        """Return a match of the first pattern, in the file's order, that recognises ``line``."""
        line = line[:MAX_LINE]
        if not self.worth(line):
            return None
        for pattern in self.patterns:
            if (found := pattern.search(line)) is not None:
                groups = {name: printable(value, 300) for name, value in found.groupdict().items() if value}
                return Match(pattern=pattern, line=printable(line), groups=groups)
        return None

    def matches(self, text: str) -> list[Match]:
        """Return matches of all recognised lines of ``text``, in order."""
        if not self.worth(text):
            return []
        return [found for line in text.splitlines() if (found := self.match(line)) is not None]


def printable(line: str, limit: int = 1000) -> str:
    """Return a line fit to be shown: control characters escaped, at most ``limit`` characters."""
    cut = line.strip()[:limit]
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)[
        :limit
    ]


@lru_cache(maxsize=8)
def registry(path: Path) -> Registry:
    """Read a data file.

    Raises:
        SettingsError: it is missing or malformed, or an expression is.
    """
    try:
        raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = Registry.model_validate(raw)
        for pattern in found.patterns:
            _ = pattern.compiled
    except (OSError, yaml.YAMLError, ValidationError, re.error) as error:
        raise SettingsError(f"log patterns {path}: {error}. Reinstall holdfast or repair the file.") from None
    return found
