"""The table of settings in ``docs/settings.md``: ``python -m holdfast.settings_table > docs/settings.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from holdfast.settings import Settings

_HEAD = """\
# Settings

Read from the environment, then from `.holdfast/settings.env` (written by `holdfast up`), then these defaults. A wrong
value is refused with its name and what was expected. Thresholds, ladders and limits are not here but in the
[policy file](../policies/default.yaml); `HOLDFAST_POLICY_FILE` names one of your own, with only what it changes.

| variable | default | meaning |
|---|---|---|
"""


def table() -> str:
    """Return the whole page, as markdown."""
    return _HEAD + "".join(_row(name, field) for name, field in Settings.model_fields.items())


def _row(name: str, field: FieldInfo) -> str:
    return f"| `HOLDFAST_{name.upper()}` | {_default(field.default)} | {field.description} |\n"


def _default(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value == "":
        return "empty"
    return f"`{value.as_posix() if isinstance(value, Path) else value}`"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201
