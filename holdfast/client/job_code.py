"""A job's code before it is shipped: found, checked, and stored as a version."""

from __future__ import annotations

import ast
import os
import re
import zipfile
from collections.abc import Collection
from pathlib import Path

from holdfast.errors import SettingsError
from holdfast.models.job import JobSpec
from holdfast.models.roles import TRAINER
from holdfast.settings import Settings
from holdfast.storage.code.code_files import list_files

_NO_SUCH_FILE = re.compile(r"No such file or directory: '([^'\n]+)'")


def folder(code: str, base: Path) -> Path:
    """Return the code directory, relative to ``base``.

    Raises:
        SettingsError: there is none.
    """
    path = (base / Path(code).expanduser()).resolve()
    if not path.is_dir():
        raise SettingsError(f"code = {code!r}: no directory {path}; expected the folder with the job's code.")
    return path


def check_scripts(code: Path, spec: JobSpec) -> None:
    """Check the training script of a job, and those of its roles.

    Raises:
        SettingsError: one is missing, outside the code directory, ignored by git, or does not parse; or git cannot list
            the directory's files.
    """
    shipped = list_files(code)
    _check_script(code, shipped, spec.script, "script")
    for name, role in spec.roles.items():
        if name != TRAINER:
            _check_script(code, shipped, role.script, f"roles.{name}.script")


def _check_script(code: Path, shipped: Collection[str], script: str, field: str) -> None:
    """Check that a script is there, is ``shipped`` and is Python, before anything is stored.

    Raises:
        SettingsError: it is missing, outside the code directory, ignored by git, or does not parse.
    """
    path = (code / script).resolve()
    if not path.is_relative_to(code) or not path.is_file():
        raise SettingsError(
            f"{field} = {script!r}: no such file in {code}; expected a path inside the code directory."
            f"{_of_module(script)}"
        )
    if ignored := _ignored(code, shipped, script):
        raise SettingsError(f"{field} = {script!r}: {ignored}.")
    if zipfile.is_zipfile(path):
        raise SettingsError(
            f"{field} = {script!r} is a zip application: unpack it in the code directory and name its __main__.py."
        )
    try:
        ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{path}, line {line}" if line else str(path)
        raise SettingsError(
            f"{field} = {script!r} is not valid Python ({place}): {getattr(error, 'msg', error)}. "
            "Nothing was submitted; fix it and submit again."
        ) from None


def _of_module(script: str) -> str:
    """Return what to give in place of a module's name, as ``torchrun -m`` takes it; empty: it looks like none."""
    name = script.removeprefix("-m").strip()
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        return ""
    return (
        f" For a module: a script that calls runpy.run_module({name!r}, run_name='__main__', alter_sys=True)."
    )


def explain_missing(code: Path, message: str) -> str:
    """Return why the file that a script did not find is not there, although ``code`` has it; empty: not known.

    Args:
        code: the code directory that was shipped.
        message: of the script's error.
    """
    found = _NO_SUCH_FILE.search(message)
    ignored = _ignored(code, list_files(code), found[1]) if found else ""
    return f"{ignored}; keep data elsewhere and name it by a path that the machines have" if ignored else ""


def _ignored(code: Path, shipped: Collection[str], name: str) -> str:
    """Return that the file is there and is not shipped; empty: it is shipped, or is not there."""
    inside = os.path.normpath(name)
    outside = os.path.isabs(inside) or inside.startswith("..")
    if outside or inside in shipped or not (code / inside).is_file():
        return ""
    return f"{inside} lies in {code}, but git ignores it: it is not shipped"


def store(settings: Settings, job: str, code: Path) -> str:
    """Pack ``code`` and keep it in S3 as a version of ``job``'s code; returns the version.

    Raises:
        UnavailableError: S3 does not answer.
        UnknownError: the bucket does not exist.
        SettingsError: the directory is empty, too large, or holds what cannot be packed.
    """
    # boto3 takes 0.2 s to import: only commands that ship code pay it.
    from holdfast.storage import objects  # noqa: PLC0415
    from holdfast.storage.code import versions  # noqa: PLC0415

    return versions.store(objects.from_settings(settings), job, code)
