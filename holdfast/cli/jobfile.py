"""Reads a job file: YAML against :class:`holdfast.models.job.JobSpec`; errors state what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from holdfast import names
from holdfast.errors import SettingsError
from holdfast.models.job import JobSpec
from holdfast.policies.config import policy_file
from holdfast.policies.config.policy_file import Location

_KINDS = {
    "string_type": "text",
    "tuple_type": "a list, such as [a, b]",
    "list_type": "a list, such as [a, b]",
    "dict_type": "fields with values, such as {a: b}",
    "model_type": "fields with values, such as {a: b}",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""Names that YAML writers use for the types that pydantic's errors expect."""
_IN_WORDS = {
    about["pattern"]: about["description"]
    for about in (each.json_schema() for each in (names.JOB, names.ROLE, names.MACHINE))
}

_OF_NAMES = ("extra_forbidden", "missing")
"""Mistakes for which it helps to know the fields that there are."""


def read(path: Path) -> JobSpec:
    """Return the job that ``path`` describes.

    Raises:
        SettingsError: no such file, no YAML mapping, or a field is wrong (line, field, value, what was expected).
    """
    source = policy_file.parse(path, "job file")
    return parse(source.values, str(path), source.line_of, source.texts)


def parse(
    content: Mapping[Any, Any],
    origin: str,
    line_of: Callable[[Location], int | None] = lambda _: None,
    texts: Mapping[Location, str] = MappingProxyType({}),
) -> JobSpec:
    """Return a job from a mapping; ``origin`` names it in errors.

    Args:
        line_of: gives the line of a field.
        texts: fields as they are written in the file.

    Raises:
        SettingsError: names every wrong field.
    """
    try:
        return JobSpec.model_validate(content)
    except ValidationError as error:
        lines = [_placed(dict(detail), line_of, texts) for detail in error.errors()]
        places = dict.fromkeys(detail["loc"][:-1] for detail in error.errors() if detail["type"] in _OF_NAMES)
    shown = [*lines, *(f"({known})" for place in places if (known := _known(place)))]
    raise SettingsError(f"job file {origin}:\n" + "\n".join(f"  {line}" for line in shown))


def _known(place: Location) -> str:
    """Return what may stand at a place of the job file; empty: that is no table of fields."""
    # The sizes of an elastic job stand under `machines`.
    fields = [name for name in policy_file.fields_at(JobSpec, place) if place or name != "elastic"]
    if not fields:
        return ""
    return (
        f"fields of {'.'.join(map(str, place))}: {', '.join(fields)}"
        if place
        else f"fields: {', '.join(fields)}"
    )


def _placed(
    detail: dict[str, Any], line_of: Callable[[Location], int | None], texts: Mapping[Location, str]
) -> str:
    # In the job file the sizes of an elastic job stand under `machines`.
    location = tuple("machines" if part == "elastic" else part for part in detail["loc"] if part != "[key]")
    line = line_of(location)
    detail["written"] = texts.get(location, str(detail["input"]))
    return (f"line {line}: " if line else "") + _explain(detail, ".".join(map(str, location)))


def _explain(detail: dict[str, Any], field: str) -> str:
    """Return one line: field, value, what was expected."""
    match detail["type"]:
        case "missing":
            return f"{field}: missing; expected {_expected(detail['loc'])}"
        case "extra_forbidden":
            return f"{field} = {detail['input']!r}: no such field"
        case "invalid_key":
            return f"{field}: expected text as the name of a field"
        case "value_error":
            return f"{field}: {detail['ctx']['error']}" if field else str(detail["ctx"]["error"])
        case _:
            shown = detail["written"] if isinstance(detail["input"], date) else repr(detail["input"])
            return f"{field} = {shown}: expected {_reason(detail)}"


def _reason(detail: dict[str, Any]) -> str:
    given, context = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return str(_IN_WORDS.get(pattern, f"text that matches {pattern}"))
        case "string_type" if isinstance(given, bool | int | float | date):
            return f'text; with quotes it is: "{detail["written"]}"'
        case "greater_than_equal":
            return f"{context['ge']:g} or more"
        case "less_than_equal":
            return f"{context['le']:g} or less"
        case kind if kind in _KINDS:
            return _KINDS[kind]
    return str(detail["msg"]).removeprefix("Input should be ")


def _expected(loc: tuple[str | int, ...]) -> str:
    field = JobSpec.model_fields.get(str(loc[0])) if len(loc) == 1 else None
    if field is None:
        return "a value"
    kind = getattr(field.annotation, "__name__", "value")
    words = {"str": "text", "int": "a whole number"}.get(kind, kind)
    return f"{words}: {field.description}" if field.description else words
