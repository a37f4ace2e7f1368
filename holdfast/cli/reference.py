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

## By purpose

| to | commands | page |
|---|---|---|
| start a site, look at it | `up`, `doctor`, `demo`, `status`, `machines` | [getting started](getting-started.md) |
| run a job, ship a change | `submit`, `wait`, `update`, `stop`, `resume` | [job file](job-file.md) |
| hold a job at a step, let it go on | `pause`, `resume` | [below](#holdfast-pause-job) |
| change a job's size | `scale` | [elastic jobs](elastic-jobs.md) |
| leave a machine that works | `move` | [planned moves](planned-moves.md) |
| see what broke | `incidents`, `incident` | [operations](operations.md#an-incident-in-the-prefect-ui) |
| answer a playbook | `approve` | [asking first](incident-classes.md#asking-first) |
| be notified | `notify` | [notifications](notifications.md) |
| take a machine out, give it back | `evict`, `release` | [operations](operations.md#what-to-do-when) |
| list, keep, verify, export saved states | `checkpoints`, `doctor JOB` | [loading](checkpoints-load.md#commands) |
| size the standby pool | `pool` | [standby pool](standby-pool.md) |
| plan months ahead | `simulate` | [simulator](simulator.md) |
| try a policy on past incidents | `replay-incident` | [replay of an incident](replay-incident.md) |
| break something | `inject`, `chaos` | [chaos](chaos.md) |
| write a playbook, list plug-ins | `new`, `plugins` | [writing a playbook](writing-a-playbook.md) |
| restart the control plane | `down`, `up` | [operations](operations.md#restarting-the-control-plane) |
| upgrade the ledger | `ledger` | [PostgreSQL](postgresql.md#schema) |

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
