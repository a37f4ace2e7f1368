"""Check a name that comes without a model: an argument, a part of a URL, a label."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from holdfast.errors import SettingsError
from holdfast.models.names import Incarnation, IncidentId, JobName, MachineName, RunName, Version
from holdfast.models.roles import RoleName

_LETTERS = "letters, digits, '.', '_' and '-' behind a letter or digit, at most"


def checker(kind: Any, what: str, expected: str) -> TypeAdapter[str]:
    """Return a checker for names outside of models, with :func:`require`."""
    return TypeAdapter(Annotated[kind, Field(title=what, description=expected)])


JOB = checker(JobName, "job", "lower-case letters, digits and '-' behind a letter or digit, at most 63")
RUN = checker(RunName, "job", "as a job's name, with '~' and a word behind it for a replay or check")
VERSION = checker(Version, "code version", f"{_LETTERS} 64")
MACHINE = checker(MachineName, "machine", f"{_LETTERS} 63")
ROLE = checker(RoleName, "role", "lower-case letters, digits and '-' behind a letter or digit, at most 32")
INCIDENT = checker(IncidentId, "incident", f"{_LETTERS} 100")
INCARNATION = checker(Incarnation, "incarnation", f"{_LETTERS} 256, also ':' and '@'")


def require(kind: TypeAdapter[str], value: object, where: str = "") -> str:
    """Return the name, if it is one; ``where`` names in the error where it was given.

    Raises:
        SettingsError: it is no such name; the message shows what was expected.
    """
    try:
        return kind.validate_python(value)
    except ValidationError:
        about = kind.json_schema()
        what, expected = about["title"], about["description"]
        article = "an" if what[0] in "aeiou" else "a"
        raise SettingsError(
            f"{where}{what} {value!r:.120} is not {article} {what}'s name: expected {expected}."
        ) from None
