"""Timers of the parts of a step: on the host's clock, with CUDA on the GPU's (:mod:`holdfast.session.events`)."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType

from holdfast.session.events import Event, GpuTimes
from holdfast.session.rank_reporter import RankReporter

EXEMPT = frozenset(
    {"eval", "evaluation", "validation", "checkpoint", "compile", "download", "prepare", "tokenize"}
)
"""Phases that may take much longer than a step: they are reported to the agent, so that they are no hang.

Each has a limit in the policy file (``hang.activity_limits_s``).
"""


class Phases:
    """Seconds spent in each named phase since the last :meth:`take`."""

    def __init__(self, reporter: RankReporter | None, gpu: GpuTimes | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.reporter = reporter
        self.within: list[str] = []
        """Long phases that were entered and not left, the outermost first."""
        self.gpu = gpu or GpuTimes()

    def add(self, name: str, spent: float) -> None:
        """Add ``spent`` seconds to a phase."""
        self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 6)

    def take(self) -> dict[str, float]:
        """Return the seconds so far, and reset. Those on a GPU's clock are an earlier step's: nothing waits for it."""
        for name, spent in self.gpu.take().items():
            self.add(name, spent)
        taken, self.seconds = self.seconds, {}
        return taken


class Phase:
    """``with`` block that adds its duration to its phase. Phases of one name add up; they may nest."""

    __slots__ = ("_began", "_event", "_name", "_phases")

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases = phases
        self._name = name

    def __enter__(self) -> None:
        exempt = self._name in EXEMPT
        if exempt and self._phases.reporter:
            self._phases.within.append(self._name)
            self._phases.reporter.send("activity", name=self._name)
        self._event: Event | None = None if exempt else self._phases.gpu.begin()
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        phases = self._phases
        spent = perf_counter() - self._began
        if self._event is None or not phases.gpu.end(self._name, self._event):
            phases.add(self._name, spent)
        if self._name in EXEMPT and phases.reporter:
            phases.within.remove(self._name)
            # Compiling within an evaluation: that goes on.
            phases.reporter.send("activity", name=phases.within[-1] if phases.within else "")
