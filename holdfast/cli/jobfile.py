"""Reads a job file: YAML against :class:`holdfast.models.job.JobSpec`; errors state what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.errors import SettingsError
from holdfast.models.job import JobSpec


def read(path: Path) -> JobSpec:
    """Return the job that ``path`` describes.

    Raises:
        SettingsError: no such file, no YAML mapping, or a field is wrong (field, value, what was expected).
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise SettingsError(f"job file {path}: {reason}. Give the path of a YAML job file.") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise SettingsError(f"job file {path}{where}: not valid YAML: {problem}.") from None
    if not isinstance(content, dict):
        raise SettingsError(
            f"job file {path}: expected fields such as 'name: my-job', found {type(content).__name__}."
        )
    return parse(content, str(path))


def parse(content: dict[Any, Any], origin: str) -> JobSpec:
    """Return a job from a mapping; ``origin`` names it in errors."""
    try:
        return JobSpec.model_validate(content)
    except ValidationError as error:
        lines = [_explain(dict(detail)) for detail in error.errors()]
    known = ", ".join(JobSpec.model_fields)
    raise SettingsError(
        f"job file {origin}:\n" + "\n".join(f"  {line}" for line in lines) + f"\n  (fields: {known})"
    )


def _explain(detail: dict[str, Any]) -> str:
    """Return one line: field, value, what was expected."""
    # In the job file the sizes of an elastic job stand under `machines`.
    field = ".".join("machines" if part == "elastic" else str(part) for part in detail["loc"])
    match detail["type"]:
        case "missing":
            return f"{field}: missing; expected {_expected(detail['loc'])}"
        case "extra_forbidden":
            return f"{field} = {detail['input']!r}: no such field"
        case "value_error":
            return f"{field}: {detail['ctx']['error']}" if field else str(detail["ctx"]["error"])
        case _:
            return f"{field} = {detail['input']!r}: expected {_reason(detail)}"


def _reason(detail: dict[str, Any]) -> str:
    if detail["type"] == "string_pattern_mismatch":
        return f"text that matches {detail['ctx']['pattern']}"
    said = str(detail["msg"])
    return said.removeprefix("Input should be ")


def _expected(loc: tuple[str | int, ...]) -> str:
    field = JobSpec.model_fields.get(str(loc[0])) if len(loc) == 1 else None
    if field is None:
        return "a value"
    kind = getattr(field.annotation, "__name__", "value")
    words = {"str": "text", "int": "a whole number"}.get(kind, kind)
    return f"{words}: {field.description}" if field.description else words
