"""Read a policy file so that every mistake is named with its key, its line and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from holdfast.errors import SettingsError
from holdfast.policies.config import yaml_source

Location = tuple[str | int, ...]
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class PolicyFile:
    """Content of a file, and the line of each key (counted from 1)."""

    path: Path
    values: dict[str, Any]
    lines: dict[Location, int] = field(default_factory=dict)
    what: str = "policy file"
    """Its name in messages."""
    texts: dict[Location, str] = field(default_factory=dict)
    """Single values as they are written there, before YAML takes `yes` for true and `010` for 10."""

    def line_of(self, location: Location) -> int | None:
        """Return the line of the key at ``location``, or of the nearest key above it."""
        for end in range(len(location), 0, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return None


def parse(path: Path, what: str = "policy file") -> PolicyFile:
    """Read a YAML mapping; messages call the file ``what``.

    Raises:
        SettingsError: missing file, broken YAML, a key given twice, too much of it, or no mapping at the top.
    """
    try:
        loader = yaml_source.Loader(yaml_source.read(path))
        node = loader.get_single_node()
        if node is None:
            return PolicyFile(path, {}, what=what)
        if not isinstance(node, yaml.MappingNode):
            raise SettingsError(
                f"{what} {path}: expected keys with values at the top, and sections such as `name:`."
            )
        # Before any value is made: what merges (`<<`) stand for is laid out there.
        lines, texts = _places(f"{what} {path}", node)
        return PolicyFile(path, loader.construct_document(node), lines, what, texts)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{what} {path}: cannot be read ({error}).{_hint(what)}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{what} {path}: not valid YAML: {error}") from None
    except yaml_source.YamlTooLargeError as error:
        raise SettingsError(f"{what} {path}: {error}.") from None
    except RecursionError:
        raise SettingsError(f"{what} {path}: it is nested too deeply") from None


def _places(where: str, node: yaml.Node) -> tuple[dict[Location, int], dict[Location, str]]:
    """Return the line of each key below ``node``, and single values as they are written."""
    found = _Places(where)
    try:
        found.note(node, ())
    except RecursionError:
        raise SettingsError(f"{where}: a part of it contains itself (`&` and `*`)") from None
    return found.lines, found.texts


def _hint(what: str) -> str:
    return " Check HOLDFAST_POLICY_FILE, or `--policy`." if what == "policy file" else ""


class _Places:
    """Where the keys and values of a file stand."""

    def __init__(self, where: str) -> None:
        self._where, self._budget = where, yaml_source.Budget()
        self.lines: dict[Location, int] = {}
        self.texts: dict[Location, str] = {}

    def note(self, node: yaml.Node, at: Location) -> None:
        """Note all that is below ``node``, which stands ``at`` these keys."""
        self._budget.take(node)
        if isinstance(node, yaml.ScalarNode):
            self.texts[at] = node.value
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*at, index)] = item.start_mark.line + 1
                self.note(item, (*at, index))
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise SettingsError(
                    f"{self._where}, line {line}: a key is a list or a mapping; expected text."
                )
            here: Location = (*at, str(key.value))
            if here in self.lines:
                raise SettingsError(
                    f"{self._where}, line {line}: {_dotted(here)} is given twice (first in line {self.lines[here]}); "
                    "keep one."
                )
            self.lines[here] = line
            self.note(value, here)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any], whole: Collection[str] = ()) -> dict[str, Any]:
    """Lay ``changes`` over ``base``, mapping by mapping.

    Lists, scalars and mappings under a key of ``whole`` are replaced.
    """
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict) and key not in whole:
            value = merge(below, value, whole)  # noqa: PLW2901
        merged[key] = value
    return merged


def validate(model: type[Model], values: Mapping[str, Any], source: PolicyFile) -> Model:
    """Check ``values``; raise the first mistake as one sentence.

    Keys that end in ``_s`` are seconds; a text such as ``5 min`` is taken too.

    Raises:
        SettingsError: names file, line, key, value and what is allowed.
    """
    try:
        return model.model_validate(_in_seconds(values, (), source))
    except ValidationError as error:
        first = error.errors()[0]
        location = tuple(part for part in first["loc"] if part != "[key]")
        raise SettingsError(f"{_where(source, location)}: {_explain(model, first)}") from None


def _where(source: PolicyFile, location: Location) -> str:
    line = source.line_of(location)
    return f"{source.what} {source.path}" + (f", line {line}" if line else "")


def _in_seconds(values: Mapping[str, Any], at: Location, source: PolicyFile) -> dict[str, Any]:
    """Return ``values`` with every duration as a number."""
    return {key: _seconds(value, (*at, str(key)), source) for key, value in values.items()}


def _seconds(value: Any, at: Location, source: PolicyFile) -> Any:
    if isinstance(value, Mapping):
        return _in_seconds(value, at, source)
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(
            f"{_where(source, at)}: {_dotted(at)} = {value}: expected a finite number; a large one, such as 1000 d, "
            "is as good as never."
        )
    meant = any(str(part).endswith("_s") for part in at)
    written = (
        re.fullmatch(r"\s*([0-9.]+)\s*([^0-9.\s]+)\s*", value) if meant and isinstance(value, str) else None
    )
    if written is None:
        return value
    if written[2] not in UNITS:
        raise SettingsError(
            f"{_where(source, at)}: {_dotted(at)} = {value!r}: unknown unit {written[2]!r}. "
            f"Allowed: a number of seconds, or a number with one of {', '.join(UNITS)}."
        )
    try:
        return float(written[1]) * UNITS[written[2]]
    except ValueError:
        return value


def _explain(model: type[BaseModel], error: Mapping[str, Any]) -> str:
    location = tuple(part for part in error["loc"] if part != "[key]")
    name = _dotted(location)
    if error["type"] == "extra_forbidden":
        return (
            f"{name} is not a known key. Allowed here: {', '.join(sorted(fields_at(model, location[:-1])))}."
        )
    if error["type"] == "missing":
        return f"{name} is missing; give it a value."
    # A rule of our own states itself what it expects, which may be less than all of the choices.
    ours = error["type"] == "value_error"
    allowed = "" if ours else _allowed(model, location, key="[key]" in error["loc"])
    # A rule over several keys has no value of its own to show.
    shown = "" if isinstance(error["input"], Mapping) and ours else f" = {error['input']!r}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}{shown}: {message}." + (f" Allowed: {allowed}." if allowed else "")


def fields_at(model: type[BaseModel], location: Location) -> list[str]:
    """Return the names of the fields at ``location``, in their order; none, where no model belongs there."""
    kind = _model_in(_type_at(model, location))
    return list(kind.model_fields) if _is_model(kind) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _model_in(kind: Any) -> Any:
    """Return the first model of a union, such as ``Model | None``; any other annotation as it is."""
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    return next(filter(_is_model, choices), kind)


def _type_at(model: Any, location: Location) -> Any:
    """Return the annotation at ``location``, through models, mappings and lists; of unions through the first model."""
    for part in location:
        model = _model_in(model)
        if _is_model(model):
            field = model.model_fields.get(str(part))
            model = field.annotation if field else None
        elif get_origin(model) is dict:
            model = get_args(model)[1]
        elif get_origin(model) in (list, tuple, frozenset):
            model = get_args(model)[0]
    return model


def _allowed(model: type[BaseModel], location: Location, *, key: bool = False) -> str:
    """Return the choices of the enumeration that belongs at ``location``; empty when it is none."""
    kind = _type_at(model, location[:-1] if key else location)
    if key and get_origin(kind) is dict:
        kind = get_args(kind)[0]
    enums = [item for item in _flatten(kind) if isinstance(item, type) and issubclass(item, Enum)]
    return "; ".join(", ".join(str(member.value) for member in item) for item in enums)


def _flatten(kind: Any) -> list[Any]:
    if get_origin(kind) in (Union, UnionType, dict, list, tuple, frozenset):
        return [leaf for inner in get_args(kind) for leaf in _flatten(inner)]
    return [kind]


def _dotted(location: Location) -> str:
    return ".".join(str(part) for part in location) or "the file"
