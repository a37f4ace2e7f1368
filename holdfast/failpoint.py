"""Places where tests kill a process: around each write, rename and commit of what must survive.

``HOLDFAST_FAILPOINT=NAME`` in the environment of a process has it kill itself at that place, with SIGKILL;
``NAME:3`` the third time it gets there. Unset, a place costs one comparison. Names and their meaning: :data:`POINTS`.
"""

from __future__ import annotations

import os
import signal

from holdfast.errors import SettingsError

ENV = "HOLDFAST_FAILPOINT"

FILES = {
    "disk": "a shard on the disk tier",
    "plan": "the plan that rank 0 keeps beside its shards",
    "peer-plan": "the copy of a plan that a neighbour keeps",
    "code": "a checkout of a code version",
    "archive": "the archive of a code version, kept for other machines",
    "settings": "settings.env",
    "secret": "a secret that `holdfast up` makes",
    "roster": "the names of local machines",
    "machine": "what a local machine is, and why it was evicted",
    "slurm": "the nodes that are ours",
    "export": "a checkpoint exported as a directory",
}
"""Files that :mod:`holdfast.durable` puts in place, by the name that their failpoints begin with."""
STEPS = {
    "written": "complete under another name, perhaps not on the disk",
    "synced": "on the disk under another name",
    "renamed": "in place, the rename perhaps not on the disk",
    "kept": "in place and on the disk",
}
POINTS: dict[str, str] = {
    **{f"{file}.{step}": f"{what}: {how}" for file, what in FILES.items() for step, how in STEPS.items()},
    "ledger.flushed": "all statements of a transaction were sent, none is committed",
    "ledger.committed": "a transaction is committed, its caller does not know yet",
    "header.text": "a shard's header is written, its state still says that it is not complete",
    "header.complete": "a shard's state says that it is complete",
    "s3.file": "a file of a rank's part is in S3, the rank's list of files is not",
    "s3.part": "a rank's list of files is in S3",
    "s3.boxes": "the compact metadata is in S3",
    "s3.metadata": "the stock metadata is in S3, the manifest is not",
    "s3.manifest": "the manifest is in S3, its caller does not know yet",
    "s3.code": "the archive of a code version is in S3, its caller does not know yet",
    "garbage.manifests": "manifests of checkpoints that go are deleted, their files are not",
    "garbage.files": "so are their files; unfinished uploads are not",
}
"""Every place, and what has just happened there."""

_armed: str | None = None
_left = 1


def here(name: str) -> None:
    """Mark a place: the process ends here if it is armed for it."""
    if _armed is not None:
        _reach(name)


def arm(where: str) -> None:
    """Have this process end at ``where``: ``NAME``, or ``NAME:TIMES``.

    Raises:
        SettingsError: there is no such place. One that is misspelt would never be reached.
    """
    global _armed, _left
    name, _, times = where.partition(":")
    if name not in POINTS or not (times or "1").isdecimal():
        raise SettingsError(f"{ENV} = {where!r}: expected NAME or NAME:TIMES, of {', '.join(POINTS)}.")
    _armed, _left = name, int(times or "1")


def _reach(name: str) -> None:
    global _left  # noqa: PLW0603
    if name != _armed:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


if given := os.environ.get(ENV):
    arm(given)
