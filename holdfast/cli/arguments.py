"""Arguments that several commands take, refused here when they cannot be any: names, numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import typer
from pydantic import TypeAdapter

from holdfast import names


def checked(kind: TypeAdapter[str]) -> Callable[[str | None], str | None]:
    """For typer: the name as it was given, if it may be one; None where none was given."""
    return lambda value: None if value is None else names.require(kind, value)


def finite(value: float | None) -> float | None:
    """For typer: the number as it was given; NaN and infinity pass every bound, and are refused here."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


def not_blank(value: str) -> str:
    """For typer: the words as they were given; none, or blanks, are refused where a person has to say why."""
    if not value.strip():
        raise typer.BadParameter("it is empty: say why in a few words")
    return value


JobName = Annotated[str, typer.Argument(help="As `holdfast status` lists it.", callback=checked(names.JOB))]
MachineName = Annotated[
    str, typer.Argument(help="As `holdfast machines` lists it.", callback=checked(names.MACHINE))
]
IncidentName = Annotated[
    str,
    typer.Argument(metavar="ID", help="As `holdfast incidents` lists it.", callback=checked(names.INCIDENT)),
]
