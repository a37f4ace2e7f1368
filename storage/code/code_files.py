"""Which files of a directory are its code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from holdfast.errors import SettingsError

NEVER = frozenset({".git", ".venv", "__pycache__", ".holdfast"})
"""Not code, even where git tracks it: environments, caches, and our own state with its secret."""

_GIT_TIMEOUT_S = 60


def list_files(root: Path) -> list[str]:
    """Return the paths below ``root``, sorted: tracked and new files that git does not ignore, or all without git.

    Raises:
        SettingsError: git knows the directory and cannot list it.
    """
    # A directory that git ignores as a whole (a checkout, a temporary copy) has no list: then all counts.
    names = _git(root) or _walk(root)
    return sorted(name for name in set(names) if NEVER.isdisjoint(name.split(os.sep)))


def _git(root: Path) -> list[str]:
    # Of a hook that submits code, git's variables would point at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        found = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
            env={**environment, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return []
    except subprocess.TimeoutExpired as error:
        raise SettingsError(
            f"code directory {root}: `git ls-files` took more than {_GIT_TIMEOUT_S} s."
        ) from error
    if found.returncode:
        reason = found.stderr.decode(errors="replace").strip()
        if "not a git repository" in reason:
            return []
        raise SettingsError(f"code directory {root}: git cannot list its files: {reason}")
    names = [os.fsdecode(name) for name in found.stdout.split(b"\0") if name]
    return [inner for name in names for inner in _inside(root, name)]


def _inside(root: Path, name: str) -> list[str]:
    """Return the entry itself; of a submodule or nested repository, which git lists as a folder, what is in it."""
    path = root / name
    if path.is_dir() and not path.is_symlink():
        return [os.path.join(name.rstrip("/"), inner) for inner in list_files(path)]
    return [name]


def _walk(root: Path) -> list[str]:
    names: list[str] = []
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in NEVER and name not in links]
        names += [os.path.relpath(os.path.join(folder, name), root) for name in [*files, *links]]
    return names
