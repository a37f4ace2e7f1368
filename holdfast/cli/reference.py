"""The reference of commands in ``docs/cli.md``: ``python -m holdfast.cli.reference > docs/cli.md``."""

from __future__ import annotations

from enum import Enum
from typing import Any

import typer

from holdfast.cli.main import app

_HEAD = """\
# Commands

Every command has `--help`, and all but `demo` have `--json`, which prints one JSON document and nothing else on
standard output; messages go to standard error.

**Shell completion**: `holdfast --install-completion` (bash, zsh, fish, PowerShell); `holdfast --show-completion` prints
it for packagers.

## Exit status

| status | meaning |
|---|---|
| 0 | done |
| 1 | refused or failed, with one `error:` line that says what to do; of `doctor` and other checks: something is wrong |
| 2 | the command line is wrong: unknown command or option, missing argument; no JSON then |
| 2, 10, 11, 12 | of `wait`: how the job ended, [below](#holdfast-wait-job) |
| 130 | interrupted (Ctrl-C) |

"""


def page() -> str:
    """Return the whole page, as markdown."""
    group: Any = typer.main.get_command(app)
    return _HEAD + "\n".join(_commands("holdfast", group))


def _commands(path: str, group: Any) -> list[str]:
    parts = []
    for name, command in sorted(group.commands.items()):
        inner = f"{path} {name}"
        parts += _commands(inner, command) if hasattr(command, "commands") else [_command(inner, command)]
    return parts


def _command(path: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    usage = " ".join([path, *(_shown(each) for each in arguments)])
    text = [f"## `{usage}`", "", " ".join((command.help or "").split()), ""]
    if explained := [each for each in arguments if each.help]:
        text += ["| argument | meaning |", "|---|---|"]
        text += [f"| `{_shown(each)}` | {_cell(each.help)} |" for each in explained]
        text.append("")
    if options:
        text += ["| option | meaning |", "|---|---|"]
        text += [
            f"| `{', '.join((*each.opts, *each.secondary_opts))}` | {_cell(each.help)}{_default(each)} |"
            for each in options
        ]
        text.append("")
    return "\n".join(text)


def _shown(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper().strip("[]")
    return name if argument.required else f"[{name}]"


def _default(option: Any) -> str:
    """Return the default of an option in a sentence; empty: there is none, or its help has it."""
    if option.required:
        return " Required."
    value = option.default.value if isinstance(option.default, Enum) else option.default
    if callable(value) or not value or value is True or "default" in (option.help or ""):
        return ""
    return f" Default: `{value:g}`." if isinstance(value, float) else f" Default: `{value}`."


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
