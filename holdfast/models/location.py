"""Location of a machine: the domains that it shares with others and is lost with (rack, switch, NVLink domain)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

LevelName = Annotated[str, Field(pattern="^[a-z][a-z0-9_-]{0,31}$")]
"""Of a level of failure domains: rack, switch, nvlink."""
DomainName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
"""Of one domain: a rack, a switch."""
Location = Annotated[Mapping[LevelName, DomainName], Field(max_length=8)]
"""Domains of a machine by level; empty: not known."""

_CHECK: TypeAdapter[Mapping[str, str]] = TypeAdapter(Location)
SWITCH = "switch"
"""The level of leaf switches."""


def parse(text: str) -> dict[str, str]:
    """Return the location that ``text`` states, as ``level=domain`` with commas between.

    Raises:
        ValueError: a part is not of this form, or a level is named twice.
    """
    found: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        level, equals, domain = (each.strip() for each in part.partition("="))
        if not equals or level in found:
            why = f"names level {level!r} twice" if level in found else "is not level=domain"
            raise ValueError(f"{part!r} {why}: write, for example, switch=leaf-3,rack=r12")
        found[level] = domain
    try:
        return dict(_CHECK.validate_python(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(each) for each in first["loc"] if each != "[key]")
        raise ValueError(f"{where}: {first['msg']}" if where else str(first["msg"])) from None


def of_machine(setting: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the location that a site states; else the switches that Slurm names to its steps.

    Raises:
        ValueError: the setting cannot be read.
    """
    stated = parse(setting)
    slurm = of_slurm(environ.get("SLURM_TOPOLOGY_ADDR", ""), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""))
    return {**slurm, **stated}


def of_slurm(address: str, pattern: str) -> dict[str, str]:
    """Return the switches above a node, from the variables that Slurm sets for a step; empty: they name none.

    Args:
        address: ``SLURM_TOPOLOGY_ADDR``: names from the top switch down to the node, with periods between.
        pattern: ``SLURM_TOPOLOGY_ADDR_PATTERN``: the kind of each, ``switch`` or ``node``.

    The leaf switch is the level ``switch``; those above are ``switch-2`` and so on, as far as there is room.
    """
    names, kinds = address.split("."), pattern.split(".")
    if len(names) != len(kinds):
        return {}  # a period within a name, or a plug-in that names something else
    above = [name for name, kind in zip(names, kinds, strict=True) if kind == SWITCH and name]
    levels = {
        SWITCH if height == 1 else f"{SWITCH}-{height}": name
        for height, name in enumerate(reversed(above), 1)
        if height <= 8
    }
    return usable(levels)


def usable(found: Mapping[str, str]) -> dict[str, str]:
    """Return what an engine reports of a machine, if it is a location; else nothing."""
    try:
        return dict(_CHECK.validate_python(dict(found)))
    except ValidationError:
        return {}
