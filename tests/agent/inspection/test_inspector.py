"""The inspector: detectors on their intervals, none of which disturbs another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from holdfast.agent.inspection import Inspector
from holdfast.agent.inspection.base import Limits
from holdfast.inject.xid_79 import LINE
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.paths import machine_dir
from holdfast.settings import Settings


class Scripted:
    """A detector that plays a list of results; the last repeats."""

    interval_s = 0.001

    def __init__(self, name: str, *turns: list[Alert] | Exception, blocking: bool = False) -> None:
        self.name, self.blocking = name, blocking
        self.turns = list(turns)
        self.polls = 0

    def poll(self) -> list[Alert]:
        turn = self.turns[min(self.polls, len(self.turns) - 1)]
        self.polls += 1
        if isinstance(turn, Exception):
            raise turn
        return turn

    def inspect(self) -> list[Finding]:
        return [Finding(check=self.name, machine="m0", ok=True)]


def alert(at: float, fingerprint: str = "f") -> Alert:
    return Alert(kind=AlertKind.XID, machine="m0", at=at, fingerprint=fingerprint)


@contextlib.asynccontextmanager
async def running(inspector: Inspector) -> AsyncIterator[None]:
    task = asyncio.create_task(inspector.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def inspector(tmp_path: Path, seen: list[Alert], *detectors: Scripted) -> Inspector:
    return Inspector("m0", tmp_path, Settings(), seen.append, detectors=detectors)


async def test_detector_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    """It is logged and tried again."""
    broken, good = Scripted("broken", RuntimeError("no"), [alert(1.0)]), Scripted("good", [alert(1.0, "g")])
    seen: list[Alert] = []
    async with running(inspector(tmp_path, seen, broken, good)):
        await until(lambda: len(seen) == 2)
    assert broken.polls >= 2


async def test_same_signal_is_not_repeated_within_the_window(tmp_path: Path) -> None:
    """Five seconds later it is news again."""
    detector = Scripted("d", [alert(1.0)], [alert(2.0)], [alert(7.0)], [])
    seen: list[Alert] = []
    async with running(inspector(tmp_path, seen, detector)):
        await until(lambda: detector.polls > 4)
    assert [each.at for each in seen] == [1.0, 7.0]


async def test_next_incarnation_sees_a_new_signal(tmp_path: Path) -> None:
    """Fingerprints differ between inspectors, so that a repaired machine's next fault is no duplicate."""
    seen: list[Alert] = []
    for _ in range(2):
        before = len(seen)
        async with running(inspector(tmp_path, seen, Scripted("d", [alert(1.0)], []))):
            await until(lambda before=before: len(seen) > before)  # type: ignore[misc]
        await asyncio.sleep(0.002)
    assert seen[0].fingerprint != seen[1].fingerprint


async def test_inspection_asks_every_detector(tmp_path: Path) -> None:
    """In threads where they may block; each finding says how long it took."""
    findings = await inspector(tmp_path, [], Scripted("a"), Scripted("b", blocking=True)).inspect()
    assert [finding.check for finding in findings] == ["a", "b"]
    assert all(finding.seconds > 0 for finding in findings)


async def test_real_detectors_report_a_line_in_the_machines_kernel_log(tmp_path: Path) -> None:
    """From the file to the alert in less than the host's inspection interval."""
    folder = machine_dir(tmp_path, "m0")
    folder.mkdir(parents=True)
    seen: list[Alert] = []
    real = Inspector("m0", tmp_path, Settings(), seen.append, limits=Limits(kernel_log_s=0.01))
    async with running(real):
        (folder / "kernel.log").write_text(f"{LINE}\n")
        await until(lambda: seen)
        findings = await real.inspect()
    assert seen[0].evidence["xid"] == 79
    assert any(finding.sure for finding in findings if finding.check == "kernel_log")
