"""Slurm's commands: argument lists, a time limit each, and retries while slurmctld is away.

Text formats with explicit fields are read, not ``--json``: those have stayed the same over Slurm's versions, the JSON
has not, and needs a plugin that not every build has.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import tenacity

from holdfast.errors import RefusedError, SettingsError, UnavailableError, UnknownError
from holdfast.models.base import Frozen

Result = TypeVar("Result")


# slurm_strerror() and messages of the commands, 20.11 to 25.11.
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out|reset)|zero bytes were"
    r"|communication (connection )?failure|slurm backup controller in standby|slurmctld.* not (be )?running"
    r"|temporarily un(available|able)|rate limit|please try again|munge (encode|decode) failed"
    # A credential that expired on its way to a busy slurmctld, a munged that is restarted.
    r"|protocol authentication error|authentication credential|message (send|receive) failure|try again later",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"access/permission denied|permission denied|invalid user id|user not found|security violation",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(r"invalid node name|invalid job id|node .* not found", re.IGNORECASE)


class CommandAnswer(Frozen):
    """How a command ended."""

    status: int
    out: str = ""
    err: str = ""


class Runner(Protocol):
    """Runs one command. Tests give their own."""

    def __call__(self, command: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> CommandAnswer:
        """Run ``command`` to its end.

        Raises:
            FileNotFoundError: there is no such command.
            subprocess.TimeoutExpired: it did not end in time; it was killed.
        """
        ...


def run_here(command: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> CommandAnswer:
    """Run the command as a process of this host."""
    done = subprocess.run(
        list(command),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return CommandAnswer(status=done.returncode, out=done.stdout, err=done.stderr)


class SlurmCommands:
    """``sbatch``, ``squeue`` and the like, as one user of one cluster."""

    def __init__(
        self, env: Mapping[str, str], *, patience_s: float, command_s: float = 15.0, run: Runner = run_here
    ) -> None:
        self._env, self._run = env, run
        self._patience_s, self._command_s = patience_s, command_s

    def __call__(self, *command: str) -> str:
        """Return the output of ``command``. Retried while slurmctld is away: only for commands that may be repeated.

        Raises:
            UnavailableError: slurmctld did not answer in time.
            RefusedError: this user may not do that.
            UnknownError: no such node or job.
            SettingsError: Slurm rejected it for another reason, or Slurm's commands are not installed.
        """
        return self.patiently(lambda: self.once(*command))

    def patiently(self, act: Callable[[], Result]) -> Result:
        """Return the result of ``act``, tried again for a while when it raises UnavailableError."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(UnavailableError),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
            stop=tenacity.stop_after_delay(self._patience_s),
            reraise=True,
        )
        return retrying(act)

    def once(self, *command: str) -> str:
        """Run ``command`` once, without retries."""
        line = " ".join(command)
        try:
            answer = self._run(command, env=self._env, timeout_s=self._command_s)
        except FileNotFoundError:
            raise SettingsError(
                f"no `{command[0]}` on the path: the Slurm driver needs Slurm's commands where Holdfast runs."
            ) from None
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"`{line}` did not end within {self._command_s:g} s: is slurmctld up?"
            ) from None
        if answer.status == 0:
            return answer.out
        message = " ".join(answer.err.split()) or f"exit status {answer.status}"
        raise _error(message)(f"`{line}`: {message}")


def _error(message: str) -> type[Exception]:
    if _DENIED.search(message):
        return RefusedError
    if _UNKNOWN.search(message):
        return UnknownError
    return UnavailableError if _TRANSIENT.search(message) else SettingsError
