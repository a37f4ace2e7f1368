"""Parts of a heartbeat, each built by itself: one that fails takes no other with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from holdfast.agent.ranks.run import Run
from holdfast.models.agent import JobOnMachine

_log = logging.getLogger(__name__)

Part = TypeVar("Part")


class HeartbeatParts:
    """Builds parts; of one that fails, returns what is sent instead, and logs why once until it works again.

    An agent ends its ranks when it ends: no error in what it reports is worth that.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[Hashable, Any]] = {}
        self._failing: set[str] = set()

    def build(
        self,
        name: str,
        make: Callable[[], Part],
        instead: Callable[[Any], Part],
        life: Hashable = None,
    ) -> Part:
        """Return what ``make`` returns.

        Args:
            name: of the part, for the log.
            make: builds it.
            instead: called where ``make`` raises, with what it returned last for the same ``life``, or None.
            life: what the part is about, such as an epoch.
        """
        try:
            made = make()
        except Exception:  # whatever it is
            if name not in self._failing:
                _log.exception("heartbeats go on without news of %s, which cannot be read", name)
            self._failing.add(name)
            of, last = self._last.get(name, (None, None))
            return instead(last if of == life else None)
        self._failing.discard(name)
        self._last[name] = (life, made)
        return made

    def job(self, run: Run, saves: Callable[[Run], dict[str, Any]]) -> JobOnMachine:
        """Return the state of a job's ranks, with the fields that ``saves`` returns.

        Of ranks that cannot be read, it is what was read last, and in any case that the machine has them: a job that
        is left out has lost its ranks, and is started again.
        """
        job, epoch = run.start.job, run.start.epoch

        def instead(last: JobOnMachine | None) -> JobOnMachine:
            return (last or JobOnMachine(job=job, epoch=epoch)).model_copy(update={"marks": (), "times": ()})

        ranks = self.build(f"the ranks of job {job}", run.snapshot, instead, epoch)
        of_saves = self.build(f"the saves of job {job}", lambda: saves(run), lambda last: last or {}, epoch)
        return ranks.model_copy(update=of_saves)
