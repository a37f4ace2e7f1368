"""Folders, links and pipes in the place of a shard file make way, so that no start and no save fails at them."""

from __future__ import annotations

import itertools
import logging
import os
import stat
from pathlib import Path

_log = logging.getLogger(__name__)


def make_way(path: Path) -> None:
    """Leave nothing at ``path`` but a plain file. One of another user stays: its opener refuses it.

    A folder is renamed, whatever else it is loses this name: what a link leads to, and an open pipe, stay.

    Raises:
        OSError: it cannot be moved.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISREG(found.st_mode):
        return
    if not stat.S_ISDIR(found.st_mode):
        path.unlink()
        _log.warning("%s was no shard file (%s): removed", path, stat.filemode(found.st_mode))
        return
    aside = next(
        each
        for number in itertools.count(1)
        if not os.path.lexists(each := path.with_name(f"{path.name}.folder-{number}"))
    )
    path.rename(aside)
    _log.warning("%s was a folder, a shard file belongs there: it is %s now", path, aside.name)
