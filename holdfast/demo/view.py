"""Output of the demo while it runs: lines as things happen, and a live bar for the job below them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.demo.observer import JobFacts

# Without a terminal there is no live bar: a line now and then instead.
PLAIN_EVERY_S = 10.0


class View:
    """The demo's output; a context manager around the part with the live bar."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps = console, steps
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=steps)
        self._seen: set[str] = set()
        self._plain_at = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, facts: JobFacts) -> None:
        """Follow the job: the bar, and a line for each incident that opened."""
        for incident in facts.incidents:
            if incident.id not in self._seen:
                self._seen.add(incident.id)
                where = f" on {incident.machine}" if incident.machine else ""
                self.say(f"           incident {incident.id} opened: {incident.incident_class.value}{where}")
        words = f"{facts.state or 'starting'}, epoch {facts.epoch}, {facts.standbys} standbys"
        self._progress.update(self._task, completed=facts.step, description=words)
        if not self._console.is_terminal and time.monotonic() - self._plain_at > PLAIN_EVERY_S:
            self._plain_at = time.monotonic()
            self.say(f"step {facts.step:>4}  of {self._steps} ({words})")
