"""All replicas of this machine, kept as the gateway's plan has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from holdfast.agent.roles.replica import Means, Supervised
from holdfast.errors import HoldfastError, UndyingError
from holdfast.models.roles import TRAINER, Replica, ReplicaPhase, ReplicaState, RolePlan, RolesOfJob

_log = logging.getLogger(__name__)

LOOK_S = 0.2
"""Between looks for new announcements, where there are replicas or others to be known."""
AGAIN_S = 1.0
"""Before a plan is tried again that could not be carried out."""
Key = tuple[str, str, int]
"""Job, role, index."""


class Supervisor:
    """Carries out plans; the newest counts. Used on the event loop."""

    def __init__(
        self,
        means: Means,
        code: Callable[[str, str], Awaitable[Path]],
        ranks: Callable[[str], Iterable[tuple[int, int]]],
    ) -> None:
        """``code`` checks out a version of a job's code; ``ranks`` returns live ranks with their epoch."""
        self._means = means
        self._code = code
        self._ranks = ranks
        self._plan = RolePlan()
        self._replicas: dict[Key, Supervised] = {}
        self._generations: dict[Key, int] = {}
        self._news = asyncio.Event()
        self._turns = asyncio.Lock()
        self._shown: dict[tuple[str, str, int], str] = {}

    @property
    def version(self) -> str:
        """The plan that this machine goes by."""
        return self._plan.version

    @property
    def running(self) -> bool:
        """Whether any replica's process is there, or is to start by itself: after its pause, or with its code."""
        live = (ReplicaPhase.RUNNING, ReplicaPhase.PAUSING)
        started = any(each.running or each.phase in live for each in self._replicas.values())
        return started or any(key not in self._replicas for key in self._wanted())

    @property
    def present(self) -> bool:
        """Whether any replica is here: what it started may have no mark."""
        return bool(self._replicas)

    def take(self, plan: RolePlan | None) -> None:
        """Go by ``plan`` from now on (None: by the present one); returns at once."""
        if plan is None or plan == self._plan:
            return
        try:
            for job in plan.jobs:
                self._means.files.show(job.job, job.members)
        except OSError as error:  # a full disk: the answer to the next heartbeat brings it again
            _log.error("the members of roles cannot be written: %s", error)
            return
        self._plan = plan
        self._news.set()

    def states(self) -> tuple[ReplicaState, ...]:
        """Return the state of every replica, and of ranks that announced an address."""
        return (*(replica.state() for replica in self._replicas.values()), *self._trainers())

    async def run(self) -> None:
        """Carry out plans and look for announcements, without end."""
        self._means.files.clear()
        while True:
            idle = not self._plan.jobs and not self._replicas
            try:
                async with asyncio.timeout(None if idle else LOOK_S):
                    await self._news.wait()
            except TimeoutError:
                self._look()
                continue
            self._news.clear()
            try:
                done = await self._settle()
            except (
                Exception
            ):  # whatever it is: a machine whose plans are carried out no more would not show it
                _log.exception("the replicas of this machine are not as planned")
                done = False
            if not done:
                await asyncio.sleep(AGAIN_S)
                self._news.set()

    async def forget(self, job: str) -> None:
        """End the replicas of a job that has ended, also where the plan still has them.

        Raises:
            UndyingError: some do not die; they are ended as soon as they can be.
        """
        left = tuple(each for each in self._plan.jobs if each.job != job)
        self._plan = self._plan.model_copy(update={"jobs": left})
        async with self._turns:
            done = await self._end([key for key in self._replicas if key[0] == job])
        if not any(each.job == job for each in self._plan.jobs):  # a newer plan may have it again
            self._means.files.forget(job)
        if not done:
            self._news.set()
            raise UndyingError(f"replicas of job {job} do not die: see agent.log")

    async def stop_all(self) -> None:
        """End every replica, as when the agent ends or is cut off; the next plan starts them again."""
        self._plan = RolePlan()
        async with self._turns:
            if not await self._end([*self._replicas]):
                self._news.set()

    async def _settle(self) -> bool:
        """Make the replicas those of the plan; return whether that was done."""
        async with self._turns:
            wanted = self._wanted()
            over = [
                key
                for key, replica in self._replicas.items()
                if key not in wanted or replica.order != wanted[key][1] or replica.ends
            ]
            done = await self._end(over)
        codes = (
            await self._codes()
        )  # not in turn: it may last, and a machine that is cut off must not wait for it
        async with self._turns:
            for key, (job, order) in self._wanted().items():
                done = self._start(key, job, order, codes) and done
        return done

    def _wanted(self) -> dict[Key, tuple[RolesOfJob, Replica]]:
        return {
            (job.job, order.role, order.index): (job, order)
            for job in self._plan.jobs
            for order in job.replicas
            if order.generation >= self._generations.get((job.job, order.role, order.index), 0)
        }

    async def _codes(self) -> dict[tuple[str, str], Path]:
        """Return the checkouts that replicas lack, by job and version, as far as they can be made."""
        lacking = {
            (job.job, job.code_version)
            for key, (job, _) in self._wanted().items()
            if (present := self._replicas.get(key)) is None or present.code_version != job.code_version
        }
        found = {}
        for of in sorted(lacking):
            try:
                found[of] = await self._code(*of)
            except (HoldfastError, OSError) as error:
                _log.warning("code of the roles of job %s: %s", of[0], error)
        return found

    def _start(self, key: Key, job: RolesOfJob, order: Replica, codes: dict[tuple[str, str], Path]) -> bool:
        """Start a replica that is not there; give one that is there the code for its next run."""
        present = self._replicas.get(key)
        if present is not None and present.code_version == job.code_version:
            return True
        if (code := codes.get((job.job, job.code_version))) is None:
            return False
        if present is None:
            self._generations[key] = order.generation
            present = self._replicas[key] = Supervised(job.job, order, code, self._means)
        present.code, present.code_version = code, job.code_version
        return True

    async def _end(self, keys: Iterable[Key]) -> bool:
        known = [(key, self._replicas[key]) for key in keys]
        ended = await asyncio.gather(*(replica.end() for _, replica in known), return_exceptions=True)
        done = True
        for (key, _), error in zip(known, ended, strict=True):
            if isinstance(error, HoldfastError | OSError):
                _log.error("replica %s: %s", "/".join(map(str, key)), error)
                done = False
            elif isinstance(error, BaseException):
                raise error
            else:
                del self._replicas[key]
        return done

    def _trainers(self) -> Iterable[ReplicaState]:
        for job in self._plan.jobs:
            for rank, epoch in self._ranks(job.job):
                if address := self._means.files.address(job.job, TRAINER, rank, epoch):
                    yield ReplicaState(
                        job=job.job,
                        role=TRAINER,
                        index=rank,
                        generation=epoch,
                        phase=ReplicaPhase.RUNNING,
                        address=address,
                    )

    def _look(self) -> None:
        """Have announcements that are new, or are withdrawn, reported at once."""
        now = {(each.job, each.role, each.index): each.address for each in self.states() if each.address}
        if now != self._shown:
            self._shown = now
            self._means.changed()
