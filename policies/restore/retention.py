"""Checkpoints in S3 that are kept: the last n, every m-th step, and the pinned ones.

Uploads refer to unchanged files of the newest checkpoint that was complete when they began. So every checkpoint that
was to be kept ``grace_s`` seconds ago is kept as well, and so is everything younger than that: an upload that is
given up after less than ``grace_s`` seconds never refers to something that was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.checkpoint import RemoteCheckpoint, Retention


def keep(
    checkpoints: Sequence[RemoteCheckpoint],
    rules: Retention,
    *,
    pinned: Collection[str] = (),
    now: float,
    grace_s: float,
) -> dict[str, str]:
    """Return keys of the checkpoints to keep, each with the reason; all others may go.

    The last ones are counted by (epoch, step) and among those that may be restored: a checkpoint that an older epoch
    saved beyond the step with which a newer one began counts as older. A suspect checkpoint is kept as long as it is
    newer than the oldest of them, so that a person can look into it.

    Args:
        checkpoints: the complete ones, in any order.
        rules: of the job.
        pinned: keys that are to be kept.
        now: Unix seconds.
        grace_s: longest time that an upload may take.
    """
    kept: dict[str, str] = {}
    milestones = _first_of_each(checkpoints, rules.keep_every)
    settled = [each for each in checkpoints if each.saved_at <= now - grace_s]
    for each in checkpoints:
        if each.key in pinned:
            kept[each.key] = "pinned"
        elif not each.suspect and each.step in milestones:
            kept[each.key] = f"every {rules.keep_every} steps"
        elif each.saved_at > now - grace_s:
            kept[each.key] = "young"
    for reason, some in (("last", checkpoints), ("last a while ago", settled)):
        for each in _last(some, rules.keep_last):
            kept.setdefault(each.key, reason)
    return kept


def upload_grace_s(upload_s: float, parts_s: float) -> float:
    """Return a time that no upload takes: what is older and incomplete is garbage.

    Args:
        upload_s: when the upload of a rank's part is given up.
        parts_s: how long the first rank's machine waits for the other parts.
    """
    return 2 * (upload_s + parts_s) + 120.0


def _first_of_each(checkpoints: Sequence[RemoteCheckpoint], every: int) -> frozenset[int]:
    """Return the first step at or after each multiple of ``every`` (0: none): saves that take long miss multiples."""
    first: dict[int, int] = {}
    for step in sorted(each.step for each in checkpoints if not each.suspect):
        if every and step >= every:
            first.setdefault(step // every, step)
    return frozenset(first.values())


def _last(checkpoints: Sequence[RemoteCheckpoint], count: int) -> list[RemoteCheckpoint]:
    """Return the newest ``count`` good ones, and the suspect ones among them."""
    newest = sorted(checkpoints, key=lambda each: (each.epoch, each.step), reverse=True)
    found, good = [], 0
    for each in newest:
        good += not each.suspect
        found.append(each)
        if good == count:
            break
    return found
