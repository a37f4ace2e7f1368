"""The code version to roll back to."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.history import CodeVersion, Epoch

_RAN_S = 60.0
"""So long a version must have run to be proven, in a job that reports no steps."""


def last_good(versions: Sequence[CodeVersion], current: str, proven: Collection[str]) -> str | None:
    """Return the newest proven version stored before ``current`` that is not marked bad; None when there is none.

    Args:
        versions: the job's versions, oldest first.
        current: the version to leave. One that is not among ``versions`` counts as newer than all.
        proven: versions with which the job trained (:func:`proven`). One that never did is no way back: that of a
            submission that failed before its first step, for example.
    """
    names = [version.version for version in versions]
    # The last mention: a version stored twice (an update that goes back by hand) is left from its newest place.
    end = len(names) - 1 - names[::-1].index(current) if current in names else len(names)
    bad = {version.version for version in versions if version.bad} | {current}
    return next((name for name in reversed(names[:end]) if name in proven and name not in bad), None)


def proven(epochs: Sequence[Epoch], submitted_at: float = 0.0) -> frozenset[str]:
    """Return the versions with which the job made a step; of a job that reports none, those that ran for a while.

    Args:
        epochs: the job's epochs.
        submitted_at: epochs before this belong to an earlier job of the same name, whose code a person replaced.
    """
    own = [each for each in epochs if each.opened_at >= submitted_at]
    stepped = frozenset(each.code_version for each in own if each.first_step or each.last_step)
    return stepped or frozenset(
        each.code_version
        for each in own
        if each.closed_at is not None and each.closed_at - each.opened_at >= _RAN_S
    )


def changed_at(epochs: Sequence[Epoch], submitted_at: float = 0.0) -> float | None:
    """Return when the running code version first ran, if another one ran before it (Unix seconds).

    None when the job never changed its code since ``submitted_at``, or went back to a version that it ran before:
    only new code is suspicious.

    Args:
        epochs: the job's epochs, oldest first.
        submitted_at: epochs before this belong to an earlier job of the same name.
    """
    own = [epoch for epoch in epochs if epoch.opened_at >= submitted_at]
    if not own:
        return None
    first = next(index for index, epoch in enumerate(own) if epoch.code_version == own[-1].code_version)
    went_back = any(epoch.code_version != own[-1].code_version for epoch in own[first:])
    return own[first].opened_at if first and not went_back else None
