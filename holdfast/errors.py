"""Every error that Holdfast raises on purpose, one tree.

::

    HoldfastError
    ├── SettingsError          a setting, job file or policy file is wrong
    ├── UnknownError           no such job, machine, incident, fault or code version
    ├── RefusedError           the request is understood and will not be done
    │   ├── StaleError         an old epoch, incarnation or attempt
    │   │   └── ReplacedUnitError      the machine that was meant is gone: another one has its name
    │   ├── AheadError         ranks that were to be started ahead do not wait: they are forked instead
    │   ├── NotFiringError     the alert is resolved, duplicate or too old
    │   ├── LimitError         a budget, breaker or mode forbids it
    │   └── StoppedError       the playbook decided to stop the job
    ├── UnauthorizedError      missing or wrong secret
    ├── UnavailableError       a service or agent did not answer (the only transient one: retried)
    │   ├── NoPlaybookError    Prefect answers, and has no deployment of the playbook
    │   ├── SilentError        nothing came back at all: it may be gone, or only its network
    │   ├── UndyingError       processes of a job outlive SIGKILL: nothing is started beside them
    │   │   └── DyingError     they are not stuck: the host has no free processor, ask again
    │   └── WaitError          what a restore needs does not answer: it is tried again after a pause
    ├── CheckpointError        a checkpoint is torn, short, foreign or missing
    │   ├── ScriptRefusedError the script's calls, or what it gives, could not be restored: the script must change
    │   ├── PartAwayError      a part of the state cannot be reached now: the step is not saved, a later one may be
    │   ├── DamagedError       its bytes are not those that were saved: another source or an older step is taken
    │   └── UncoveredError     it lacks elements that the state has now: other ranks' shards or S3 are taken
    ├── SourceError            training data is missing, was changed after it was listed, or cannot be read
    │   └── EmptyPlaceError        a prefix has no object: a wrong address, or all was taken away
    ├── NoStandbyError         the pool is empty
    └── RecoveryError          a playbook acted, and the job did not come back
"""

from __future__ import annotations

from holdfast import redact
from holdfast.models.missing import Missing


class HoldfastError(Exception):
    """Base of all; the message names what is wrong, where, and what to do. CLI exit status 1."""

    status = 500

    def __str__(self) -> str:
        """Return the message; passwords of URLs are no part of it."""
        return redact.passwords(super().__str__())


class SettingsError(HoldfastError):
    """A setting, job file or policy file is wrong: names the field, the value and what was expected."""

    status = 422


class UnknownError(HoldfastError):
    """No such job, machine, incident, fault or code version."""

    status = 404


class RefusedError(HoldfastError):
    """The request is understood and will not be done."""

    status = 409


class QueuedError(RefusedError):
    """It is done later, when its turn comes."""


class StaleError(RefusedError):
    """The request or report carries an old epoch, incarnation or attempt."""


class ReplacedUnitError(StaleError):
    """The unit of the machine that was meant (its pod, allocation or process tree) is gone; a new one has its name."""


class AheadError(RefusedError):
    """The ranks that a start is to hand the state to do not wait on this machine: start them without that."""


class NotFiringError(RefusedError):
    """The alert is resolved, a duplicate or too old to act on."""


class LimitError(RefusedError):
    """A budget, breaker or mode forbids it, or something is missing; a human decides, or it comes about."""

    def __init__(
        self, message: str, missing: Missing = Missing.CHANGE, again_at: float | None = None
    ) -> None:
        """Set ``missing``, the condition to wait for, and ``again_at``, when it holds (Unix seconds; None: unknown)."""
        super().__init__(message)
        self.missing, self.again_at = missing, again_at


class StoreAwayError(LimitError):
    """S3 did not answer for as long as it is waited for: whether a usable state is there is not known."""


class StoppedError(RefusedError):
    """The ladder ends here: the job is stopped for good, with this reason."""


class NotNeededError(RefusedError):
    """The request is withdrawn, or the fault is over: nothing was done, and no one is asked to do anything."""


class UnauthorizedError(HoldfastError):
    """Missing or wrong secret."""

    status = 401


class UnavailableError(HoldfastError):
    """A service or an agent did not answer in time. Transient: safe to retry."""

    status = 503
    address = ""
    """HOST:PORT of the agent that did not answer; empty: it was none."""


class NoPlaybookError(UnavailableError):
    """Prefect answers, and has no deployment of the playbook: it was deleted, or never made."""


class SilentError(UnavailableError):
    """No answer, not even a refusal: the other side may be gone, or run on where it cannot be reached."""


class UndyingError(UnavailableError):
    """Processes of a job are still there after SIGKILL: nothing is started beside them, for any job."""


class DyingError(UndyingError):
    """The same, and none is stuck in the kernel: they wait for a processor in order to end. Ask again."""


class WaitError(UnavailableError):
    """A service that a restore needs does not answer now; nothing was started, and it is retried after a pause."""


class CheckpointError(HoldfastError):
    """A checkpoint is torn, short, of another job, or missing."""

    status = 410


class ScriptRefusedError(CheckpointError):
    """The script's calls, or the state that it gives, could not be restored: the same would be refused again."""


class PartAwayError(CheckpointError):
    """A part of the state is held elsewhere and cannot be reached now: the step is not saved, a later one may be."""


class DamagedError(CheckpointError):
    """A shard or checkpoint whose bytes are missing or not those that were saved: another one must be taken."""


class UncoveredError(CheckpointError):
    """The data read does not cover what the state needs: saved under another layout, or without this part of it."""

    def __init__(self, message: str, path: str = "", missing: int = 0, needed: int = 0) -> None:
        """Note that ``missing`` of the ``needed`` elements of ``path`` are nowhere in the data that would be read."""
        super().__init__(message)
        self.path, self.missing, self.needed = path, missing, needed


class SourceError(HoldfastError):
    """Training data is missing, cannot be read, or is no longer what the listing of the run holds: names the path."""

    status = 410


class EmptyPlaceError(SourceError):
    """A prefix of training data has no object: it was never there, or all was taken away."""


class NoStandbyError(HoldfastError):
    """The standby pool has too few machines for the swap."""

    status = 409


class RecoveryError(HoldfastError):
    """A playbook acted, and the job did not come back; the next attempt climbs the ladder."""
