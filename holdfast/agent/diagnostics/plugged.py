"""Diagnosers and commands of other packages, run on this machine. They may block: each has a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from holdfast import plugins
from holdfast.errors import SettingsError, UnavailableError, UnknownError
from holdfast.models.agent import Check, Command, Diagnose
from holdfast.models.alert import Finding
from holdfast.plugins import EntryPoints


async def diagnose(command: Diagnose, machine: str) -> list[Finding]:
    """Run the diagnoser that ``command.check`` names.

    A broken one is no evidence about the machine: its finding is good, and reports that it was not run.

    Raises:
        SettingsError: there is no such check.
    """
    diagnosers, broken = plugins.load(EntryPoints.DIAGNOSERS)
    for plugin in broken:
        if plugin.name == command.check:
            return [_not_run(command, machine, f"plug-in {plugin} is broken: {plugin.error}")]
    if command.check not in diagnosers:
        known = ", ".join([*Check, *diagnosers])
        raise SettingsError(f"diagnose: check = {command.check!r}: expected one of {known}.")
    try:
        found = await asyncio.wait_for(
            asyncio.to_thread(diagnosers[command.check], machine, command), command.timeout_s
        )
        return [Finding.model_validate(each) for each in found]
    except TimeoutError:
        return [_not_run(command, machine, f"no answer within {command.timeout_s:g} s")]
    except Exception as error:  # foreign code may raise anything
        return [_not_run(command, machine, plugins.in_one_line(error))]


async def command(command: Command, machine: str, home: Path) -> dict[str, Any]:
    """Do the command that ``command.name`` names; return its result.

    Raises:
        UnknownError: no package on this machine provides it.
        SettingsError: it is broken, or returned no JSON object.
        UnavailableError: it did not end in time, or failed.
    """
    commands, broken = plugins.load(EntryPoints.COMMANDS)
    for plugin in broken:
        if plugin.name == command.name:
            raise SettingsError(f"plug-in {plugin} is broken on {machine}: {plugin.error}")
    if command.name not in commands:
        known = ", ".join(commands) or "none"
        raise UnknownError(f"machine {machine} has no command {command.name!r}. Commands: {known}.")
    try:
        result = await asyncio.wait_for(
            asyncio.to_thread(commands[command.name], machine, home, command.values), command.timeout_s
        )
    except TimeoutError:
        raise UnavailableError(
            f"{command.name} on {machine} did not end within {command.timeout_s:g} s"
        ) from None
    except Exception as error:  # foreign code may raise anything
        raise UnavailableError(f"{command.name} on {machine}: {plugins.in_one_line(error)}") from error
    return _checked(result, command, machine)


def _checked(result: Any, command: Command, machine: str) -> dict[str, Any]:
    with contextlib.suppress(TypeError, ValueError):
        json.dumps(result)
        if isinstance(result, dict):
            return result
    raise SettingsError(f"{command.name} on {machine} returned {result!r}: expected a JSON object")


def _not_run(command: Diagnose, machine: str, why: str) -> Finding:
    return Finding(check=command.check, machine=machine, ok=True, detail=f"not run: {why}"[:300])
