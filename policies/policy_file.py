"""Read a policy file so that every mistake is named with its key, its line and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from holdfast.errors import SettingsError

Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class PolicyFile:
    """Content of a file, and the line of each key (counted from 1)."""

    path: Path
    values: dict[str, Any]
    lines: dict[Location, int] = field(default_factory=dict)

    def line_of(self, location: Location) -> int | None:
        """Line of the key at ``location``, or of the nearest key above it."""
        for end in range(len(location), 0, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return None


def parse(path: Path) -> PolicyFile:
    """Read a YAML mapping.

    Raises:
        SettingsError: missing file, broken YAML, a key given twice, or no mapping at the top.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"policy file {path}: cannot be read ({error}). Check HOLDFAST_POLICY_FILE."
        ) from None
    except yaml.YAMLError as error:
        raise SettingsError(f"policy file {path}: not valid YAML: {error}") from None
    if node is None:
        return PolicyFile(path, {})
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError(f"policy file {path}: expected sections such as `hang:` at the top.")
    lines: dict[Location, int] = {}
    _note_lines(path, node, (), lines)
    return PolicyFile(path, yaml.safe_load(text), lines)


def _note_lines(path: Path, node: yaml.Node, at: Location, lines: dict[Location, int]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            _note_lines(path, item, (*at, index), lines)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here: Location = (*at, str(key.value))
        line = key.start_mark.line + 1
        if here in lines:
            raise SettingsError(
                f"policy file {path}, line {line}: {_dotted(here)} is given twice (first in line {lines[here]}); "
                "keep one."
            )
        lines[here] = line
        _note_lines(path, value, here, lines)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, mapping by mapping; lists and scalars are replaced."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def validate(model: type[Model], values: Mapping[str, Any], source: PolicyFile) -> Model:
    """Check ``values``; the first mistake is raised as one sentence.

    Raises:
        SettingsError: names file, line, key, value and what is allowed.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        location = tuple(part for part in first["loc"] if part != "[key]")
        line = source.line_of(location)
        where = f"policy file {source.path}" + (f", line {line}" if line else "")
        raise SettingsError(f"{where}: {_explain(model, location, first)}") from None


def _explain(model: type[BaseModel], location: Location, error: Mapping[str, Any]) -> str:
    name = _dotted(location)
    if error["type"] == "extra_forbidden":
        return f"{name} is no known key. Allowed here: {', '.join(_keys_beside(model, location))}."
    if error["type"] == "missing":
        return f"{name} is missing; give it a value."
    allowed = _allowed(model, location)
    return f"{name} = {error['input']!r}: {error['msg']}." + (f" Allowed: {allowed}." if allowed else "")


def _keys_beside(model: type[BaseModel], location: Location) -> list[str]:
    for part in location[:-1]:
        inner = model.model_fields[str(part)].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return sorted(model.model_fields)


def _allowed(model: type[BaseModel], location: Location) -> str:
    """Choices of the enumeration that belongs at ``location``; empty when it is none."""
    kind: Any = model
    for part in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[str(part)].annotation
    enums = [item for item in _flatten(kind) if isinstance(item, type) and issubclass(item, Enum)]
    return "; ".join(", ".join(str(member.value) for member in item) for item in enums)


def _flatten(kind: Any) -> list[Any]:
    if get_origin(kind) in (Union, UnionType, dict, list, tuple, frozenset):
        return [leaf for inner in get_args(kind) for leaf in _flatten(inner)]
    return [kind]


def _dotted(location: Location) -> str:
    return ".".join(str(part) for part in location) or "the file"
