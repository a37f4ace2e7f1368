"""Which code version to go back to."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.history import CodeVersion


def last_good(versions: Sequence[CodeVersion], current: str) -> str | None:
    """The newest version stored before ``current`` that is not marked bad; None when there is none.

    Args:
        versions: the job's versions, oldest first.
        current: the version to leave. One that is not among ``versions`` counts as newer than all.
    """
    names = [version.version for version in versions]
    # The last mention: a version stored twice (an update that goes back by hand) is left from its newest place.
    end = len(names) - 1 - names[::-1].index(current) if current in names else len(names)
    bad = {version.version for version in versions if version.bad} | {current}
    return next((name for name in reversed(names[:end]) if name not in bad), None)
