"""The table of a job file's fields in ``docs/job-file.md``, from :class:`~holdfast.models.job.JobSpec`.

``python -m tests.job_file`` writes it; a test compares.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from enum import Enum
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from holdfast.models.job import JobSpec
from tests.generated import DOCS, Part, table

PART = Part(DOCS / "job-file.md", "fields")
_WRITTEN = {"elastic": "machines"}
"""Fields that stand under the name of another one in the file."""
_FILLED_IN = frozenset({"start_from.epoch"})
"""Fields that no person has to give."""
_LEFT_OUT = {"machines.max": "`machines.want`"}
"""Defaults of fields that are left out, where they differ from the model's."""


def written_by_code() -> str:
    """All fields, those of sections below their section."""
    return table(("field", "default", "meaning"), *_rows(JobSpec))


def fields(kind: type[BaseModel], below: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Each field that a file may have, with its path in it."""
    for name, field in kind.model_fields.items():
        path = f"{below}{_WRITTEN.get(name, name)}"
        if path in _FILLED_IN:
            continue
        if name not in _WRITTEN:
            yield path, field
        if (section := _section(field.annotation)) is not None:
            yield from fields(section, f"{path}.")


def _rows(kind: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for path, field in fields(kind):
        assert field.description, f"{path} has no description"
        default = _LEFT_OUT.get(path) or _default(field)
        yield f"`{path}`", default, f"{field.description}{_choices(field.annotation)}".replace("|", "\\|")


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, or may hold."""
    return next((each for each in _held(annotation) if issubclass(each, BaseModel)), None)


def _choices(annotation: Any) -> str:
    kinds = [each for each in _held(annotation) if issubclass(each, Enum)]
    return "".join(f" One of {', '.join(f'`{member.value}`' for member in kind)}." for kind in kinds)


def _held(annotation: Any) -> list[type]:
    """The classes that a field may hold; not what is in its containers."""
    alternatives = get_origin(annotation) in (Union, types.UnionType)
    held = get_args(annotation) if alternatives else (annotation,)
    return [each for each in held if isinstance(each, type)]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return ""
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, Enum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    PART.write(written_by_code())
