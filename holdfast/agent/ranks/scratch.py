"""Temporary folders: one for each epoch on this machine, and the agent's own. None outlives its owner.

Each has a link in the machine's folder, so that the next agent finds what a killed one left.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing import process
from pathlib import Path

ENV_SHARED = "HOLDFAST_TMPDIR"
"""In an agent's environment: the temporary folder that it was started with."""
_OWN = "agent"
_MOST_CHARS = 60
"""Longest path of the folder that ours is made in: sockets below it have 107 at most (``pymp-*/listener-*``)."""


class Scratch:
    """The temporary folders of one machine, whose links lie in ``links``."""

    def __init__(self, links: Path, shared: str) -> None:
        """``shared`` is the folder that they are made in, unless a job names another."""
        self._links = links
        self._shared = shared

    def open(self, run: str, given: Mapping[str, str]) -> dict[str, str]:
        """Make a new folder for a run, in the one that its environment, ``given``, names; return the variables to set.

        Nothing, where no folder can be made: the ranks then have what they would have without us.
        """
        self.remove(run)
        base = given.get("TMPDIR", self._shared)
        if (made := _make(self._links / run, base)) is None:
            return {"TMPDIR": base}
        # Code that torch compiled is kept for later epochs.
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{base}/torchinductor_{_user()}")
        return {"TORCHINDUCTOR_CACHE_DIR": cache, **given, "TMPDIR": made}

    def remove(self, run: str) -> None:
        """Remove the folder of a run, with all that is in it."""
        _remove(self._links / run)

    def clear(self) -> None:
        """Remove what earlier agents of this machine and their epochs left; none of these may run."""
        for link in list(self._links.glob("*")):
            if link.name != _OWN:
                _remove(link)


@contextlib.contextmanager
def own(links: Path) -> Iterator[None]:
    """Use a temporary folder for this process, an agent, and for the helpers that it starts; restore the settings
    afterwards."""
    link, before = links / _OWN, tempfile.gettempdir()
    was = {name: os.environ.get(name) for name in ("TMPDIR", ENV_SHARED)}
    _remove(link)
    if (made := _make(link, before)) is not None:
        enter(made)
        os.environ[ENV_SHARED] = before
    try:
        yield
    finally:
        _remove(link)
        enter(before)
        for name, value in was.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def shared() -> str:
    """Return the temporary folder of this host, as this process was started with it."""
    return os.environ.get(ENV_SHARED) or tempfile.gettempdir()


def enter(folder: str) -> None:
    """Make this process put its temporary files in ``folder``, whatever folder it used before."""
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]


def _make(link: Path, base: str) -> str | None:
    if len(base) > _MOST_CHARS:
        return None
    try:
        made = tempfile.mkdtemp(prefix="hf-", dir=base)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(made)
    except OSError:
        return None
    return made


def _remove(link: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(os.readlink(link), ignore_errors=True)
        link.unlink()


def _user() -> str:
    """Return the user's name as torch writes it."""
    return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
