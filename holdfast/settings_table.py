"""The table of settings in ``docs/settings.md``: ``python -m holdfast.settings_table > docs/settings.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from holdfast import plugins
from holdfast.settings import FromEnvironment, Settings

_HEAD = """\
# Settings

Read from the environment, then from `.holdfast/settings.env` (written by `holdfast up`), then these defaults. A wrong
value is refused with its name and what was expected.

```console
$ HOLDFAST_PORT=5300 holdfast up     # kept in settings.env
```

An empty value is the default where that is empty. Of an `up` that failed nothing is kept:
give the values again with the next one.

A later change counts after a [restart of the control plane](operations.md#restarting-the-control-plane), on a machine
from its agent's next start. Settings of a site, with examples: [Slurm](install-slurm.md),
[Kubernetes](install-kubernetes.md), [stores](object-stores.md), [PostgreSQL](postgresql.md), [TLS and
secrets](security.md), [your team's Prefect](team-prefect.md).
Thresholds, ladders and limits are in the [policy file](policy-file.md).

"""
_COLUMNS = "| variable | default | meaning |\n|---|---|---|\n"
_OWN = """
## Settings of drivers and other packages

A driver, a store or a detector declares what it needs itself: a class of settings (`holdfast.settings.FromEnvironment`)
with a prefix of its own, and an entry point in the group `holdfast.settings`, named after the prefix. It is read as the
settings above are, by `holdfast.settings.read(AcmeSettings, settings.home)`; `holdfast up` keeps what was chosen.

```toml
[project.entry-points."holdfast.settings"]
acme = "acme_holdfast.settings:AcmeSettings"
```

Those of Holdfast's own drivers:

"""


def table() -> str:
    """Return the whole page, as markdown."""
    own = "".join(_rows(kind) for kind in plugins.own_settings().values())
    return _HEAD + _COLUMNS + _rows(Settings) + _OWN + _COLUMNS + own


def variables() -> dict[str, FieldInfo]:
    """Return the environment variables of every site and of Holdfast's own drivers."""
    kinds: list[type[FromEnvironment]] = [Settings, *plugins.own_settings().values()]
    return {name: field for kind in kinds for name, field in _variables(kind).items()}


def _variables(kind: type[FromEnvironment]) -> dict[str, FieldInfo]:
    prefix = kind.model_config["env_prefix"]
    return {f"{prefix}{name}".upper(): field for name, field in kind.model_fields.items()}


def _rows(kind: type[FromEnvironment]) -> str:
    return "".join(
        f"| `{name}` | {_default(field.default)} | {field.description} |\n"
        for name, field in _variables(kind).items()
    )


def _default(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value == "":
        return "empty"
    return f"`{value.as_posix() if isinstance(value, Path) else value}`"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201
