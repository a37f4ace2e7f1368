"""Which files are the job's own code, and which a library's that lies in its folder."""

from __future__ import annotations

import os

_OF_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def is_own(path: str, root: str) -> bool:
    """Return whether a file is the job's own: in its folder, and in no environment that was made there (``.venv``)."""
    return path.startswith(root + os.sep) and not is_installed(path[len(root) :])


def is_installed(path: str) -> bool:
    """Return whether a file belongs to an installed library, wherever that lies."""
    return not _OF_LIBRARIES.isdisjoint(path.split(os.sep))
