"""See the first steps of an epoch that was started, or that it does not make them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

from holdfast.errors import DamagedError, RecoveryError, RefusedError, UnknownError
from holdfast.models.agent import RankPhase, RankState
from holdfast.models.job import Job, JobState
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.policies.detect import starts
from holdfast.policies.join_names import join_names

_LOOKS = 4
"""Number of polls for first steps until all machines are asked, including those that had theirs already."""
_FEW = 32
_PATIENCE_S = 1.0
"""An agent answers when its ranks have made their first step, at the latest after this time."""
_PLAIN_S = 60.0
"""Ranks without a Session that have run for so long are up."""
_COMPARED_S = 30.0
"""Looks at what ranks did are compared so far apart."""
_REFUSED_S = 3.0
"""A machine that refuses connections for so long is gone, with its ranks."""
_SIGN_S = 120.0
"""A start that takes longer gives a sign so often."""


async def first_steps(
    ctx: Context,
    job_name: str,
    epoch: int,
    timeout_s: float,
    *,
    sign: Callable[[], None] = lambda: None,
    at_fault: Callable[[], str] = lambda: "",
) -> tuple[str, ...]:
    """Wait until every rank of ``epoch`` has completed a step.

    A job whose starts took longer before has longer, and so have ranks that visibly prepare their first step. Ranks of
    a job that never reported a step, and do not now, have no Session: that they run for a while is all there is to see.

    Args:
        ctx: services.
        job_name: the job's.
        epoch: the one that was started.
        timeout_s: for a job whose starts are not known.
        sign: called now and then while it takes long.
        at_fault: called at every look that did not see all steps; why a machine of the job is known to be at fault.

    Returns:
        The sources of ranks' state that were refused before one was whole, each with its reason.

    Raises:
        DamagedError: ranks could not load the state that they were to resume from.
        RecoveryError: a rank failed, a machine is gone or at fault, or time ran out.
    """
    job = ctx.ledger.job(job_name)
    machines = ctx.ledger.machines_named(job.machines)
    start = _Start(ctx, job, timeout_s, sign)
    known: dict[str, tuple[RankState, ...]] = {}
    for look in itertools.count(1):
        if start.is_overdue():
            break
        # There may be a thousand machines, and ranks make their steps together: a few are waited for until they have
        # made one, then all that are left; and now and then all are asked, for what may have failed meanwhile.
        left = [machine for machine in machines if not _stepped(known.get(machine.name))]
        few = left[:_FEW] if len(left) == len(machines) else left
        asked, patience_s = (machines, 0.0) if look % _LOOKS == 0 else (few, _PATIENCE_S)
        answers = await fleet.ask(
            ctx,
            asked,
            lambda agent, _: agent.first_steps(job_name, epoch, patience_s=patience_s),  # noqa: B023
        )
        answered = fleet.answered(answers)
        known |= {name: found.ranks for name, found in answered.items()}
        start.away = (start.away | answers.keys()) - answered.keys()
        # An agent that restarted answers that it has no ranks of the epoch.
        unknown = {name for name, answer in answers.items() if isinstance(answer, UnknownError)}
        if gone := start.gone(unknown | set(fleet.lost(answers)) - set(fleet.silent(answers)), answers):
            why = "has no ranks of it" if unknown.issuperset(gone) else "refuses connections"
            raise RecoveryError(f"epoch {epoch}: {join_names(gone)} {why}: its ranks are gone")
        ranks = [rank for found in known.values() for rank in found]
        if fallen := [rank for rank in ranks if rank.phase is RankPhase.EXITED and rank.exit_code]:
            if damaged := [rank.damaged for rank in fallen if rank.damaged]:
                raise DamagedError(damaged[0])
            # A rank that was killed comes first: the others ended since it was gone.
            first = min(fallen, key=lambda rank: rank.exit_code or 0)
            raise RecoveryError(f"epoch {epoch}: rank {first.rank} ended with status {first.exit_code} again")
        if len(ranks) == job.spec.world_size and (_stepped(ranks) or start.runs_without_session(ranks)):
            return tuple(each for rank in ranks for each in rank.passed_over)
        if ctx.ledger.job(job_name).state is JobState.STOPPED:
            raise RefusedError(f"job {job_name} was stopped")
        if why := at_fault():
            # The others wait for its ranks, and a host without power refuses no connection: it would be the whole time.
            raise RecoveryError(f"epoch {epoch}: {why}")
        start.look(ranks)
        await ctx.clock.sleep(0.05)
    raise RecoveryError(f"epoch {epoch}: no step from every rank within {start.limit_s:.0f} s")


class _Start:
    """How long a start may still take, by the clock that is never set."""

    def __init__(self, ctx: Context, job: Job, timeout_s: float, sign: Callable[[], None]) -> None:
        epochs = ctx.ledger.epochs(job.name)
        self._clock, self._policy, self._sign = ctx.clock, ctx.policy.hang, sign
        self._plain = starts.never_reported(epochs, job.submitted_at)
        self.limit_s = starts.allowed_s(
            starts.longest_s(epochs, job.submitted_at), timeout_s, ctx.policy.hang
        )
        self._began = self._compared_at = self._signed_at = ctx.clock.monotonic()
        self._before: dict[int, RankState] = {}
        self._refused_at: dict[str, float] = {}
        self.away: set[str] = set()
        """Machines that did not answer when they were asked last: what is known of their ranks is old."""

    def gone(self, refused: Collection[str], asked: Collection[str]) -> list[str]:
        """Return the machines that have refused connections, or know no ranks of the epoch, for a while.

        No rank may be left to report their loss.

        One that was silent in between is not known to be: its network may be bad.
        """
        now = self._clock.monotonic()
        for name in asked:
            if name not in refused:
                self._refused_at.pop(name, None)
        since = {name: self._refused_at.setdefault(name, now) for name in refused}
        return sorted(name for name, at in since.items() if now - at >= _REFUSED_S)

    def is_overdue(self) -> bool:
        """Return whether its time is up."""
        return self._clock.monotonic() - self._began >= self.limit_s

    def runs_without_session(self, ranks: Sequence[RankState]) -> bool:
        """Return whether these ranks run, and no step will ever be reported of them."""
        silent = self._plain and not self.away and not any(rank.reports for rank in ranks)
        return silent and self._clock.monotonic() - self._began >= _PLAIN_S

    def look(self, ranks: Sequence[RankState]) -> None:
        """Take what the ranks did: who works has more time; give a sign where one is due.

        Not where a machine is away: the others wait for its ranks, whatever their children do meanwhile.
        """
        now = self._clock.monotonic()
        if now - self._signed_at >= _SIGN_S:
            self._signed_at = now
            self._sign()
        if now - self._compared_at < _COMPARED_S:
            return
        passed_s, before = now - self._compared_at, self._before
        self._compared_at, self._before = now, {rank.rank: rank for rank in ranks}
        works = not self.away and any(
            starts.prepares(before[rank.rank], rank, passed_s, self._policy)
            for rank in ranks
            if rank.rank in before
        )
        if works:
            more_s = min(now - self._began + 2 * _COMPARED_S, self._policy.start_working_s)
            self.limit_s = max(self.limit_s, more_s)


def _stepped(ranks: Sequence[RankState] | None) -> bool:
    """Return whether all ranks made a step in this epoch, or ended well."""
    return bool(ranks) and all(rank.steps_done > 0 or rank.exit_code == 0 for rank in ranks or ())
