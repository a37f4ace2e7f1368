"""The site's own options of sbatch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from holdfast.errors import SettingsError

_DRIVERS = (
    ("--job-name", "-J"),
    ("--array", "-a"),
    ("--clusters", "-M"),
    ("--wait", "-W"),
    ("--test-only", ""),
)


def parsed(text: str) -> list[str]:
    """Return the words of HOLDFAST_SLURM_OPTIONS.

    Raises:
        SettingsError: it is no shell's text, or has an option that is the driver's.
    """
    try:
        options = shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"HOLDFAST_SLURM_OPTIONS = {text!r}: {error}") from None
    for long, short in _DRIVERS:
        if value_of(options, long, short, flag=True):
            raise SettingsError(
                f"HOLDFAST_SLURM_OPTIONS = {text!r}: {long} is the driver's own, and hides jobs from it. "
                "Their name is HOLDFAST_SLURM_JOB_NAME, the cluster that of SLURM_CONF."
            )
    return options


def value_of(options: Sequence[str], long: str, short: str = "", *, flag: bool = False) -> str:
    """Return the value of an option of sbatch that may come in four forms; empty: it was not given.

    Of a ``flag``, which may have none, the option itself is returned.
    """
    found = ""
    for word, following in zip(options, [*options[1:], ""], strict=False):
        name, given, value = word.partition("=")
        if name == long:
            found = word if flag else value if given else following
        elif short and word.startswith(short):
            found = word if flag else word.removeprefix(short) or following
    return found
