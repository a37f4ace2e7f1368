"""The inspector: detectors on their intervals, none of which disturbs another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.agent.inspection import Inspector
from holdfast.agent.inspection.detectors import detectors
from holdfast.agent.inspection.roots import Roots
from holdfast.inject.xid_79 import LINE
from holdfast.models.agent import Vitals
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.paths import machine_dir
from holdfast.settings import Settings
from tests.agent.inspection.kit import LIMITS


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


async def until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def inspector(seen: list[Alert], *detectors: Scripted) -> Inspector:
    return Inspector("m0", detectors, LIMITS.intervals, seen.append)


async def test_detector_that_fails_does_not_end_the_others() -> None:
    """It is logged and tried again."""
    broken, good = Scripted("broken", RuntimeError("no"), [alert(1.0)]), Scripted("good", [alert(1.0, "g")])
    seen: list[Alert] = []
    async with running(inspector(seen, broken, good)):
        await until(lambda: len(seen) == 2)
    assert broken.polls >= 2


async def test_same_signal_is_not_repeated_within_the_window() -> None:
    """Five seconds later it is news again."""
    detector = Scripted("d", [alert(1.0)], [alert(2.0)], [alert(7.0)], [])
    seen: list[Alert] = []
    async with running(inspector(seen, detector)):
        await until(lambda: detector.polls > 4)
    assert [each.at for each in seen] == [1.0, 7.0]


async def test_a_clock_that_is_set_back_keeps_no_signal_back() -> None:
    """For two hours nothing would be repeated."""
    detector = Scripted("d", [alert(7200.0)], [alert(10.0)], [alert(11.0)], [])
    seen: list[Alert] = []
    async with running(inspector(seen, detector)):
        await until(lambda: detector.polls > 4)
    assert [each.at for each in seen] == [7200.0, 10.0]


async def test_next_incarnation_sees_a_new_signal() -> None:
    """Fingerprints differ between inspectors, so that a repaired machine's next fault is no duplicate."""
    seen: list[Alert] = []
    for _ in range(2):
        before = len(seen)
        async with running(inspector(seen, Scripted("d", [alert(1.0)], []))):
            await until(lambda before=before: len(seen) > before)  # type: ignore[misc]
        await asyncio.sleep(0.002)
    assert seen[0].fingerprint != seen[1].fingerprint


async def test_inspection_asks_every_detector() -> None:
    """In threads where they may block; each finding has the time it took."""
    findings = await inspector([], Scripted("a"), Scripted("b", blocking=True)).inspect()
    assert [finding.check for finding in findings] == ["a", "b"]
    assert all(finding.seconds > 0 for finding in findings)


async def test_real_detectors_report_a_line_in_the_machines_kernel_log(tmp_path: Path) -> None:
    """From the file to the alert in less than the host's inspection interval."""
    folder = machine_dir(tmp_path, "m0")
    folder.mkdir(parents=True)
    seen: list[Alert] = []
    home, settings = tmp_path, Settings()
    all_of_them, vitals = detectors("m0", home, settings, LIMITS, Roots.of(home, "m0", settings))
    real = Inspector("m0", all_of_them, LIMITS.intervals, seen.append)
    async with running(real):
        (folder / "kernel.log").write_text(f"{LINE}\n")
        # Alerts about the host's own state may come beside it.
        await until(lambda: any(each.kind is AlertKind.XID for each in seen))
        findings = await real.inspect()
    assert next(each for each in seen if each.kind is AlertKind.XID).evidence["xid"] == 79
    assert vitals() == Vitals()
    assert any(finding.sure for finding in findings if finding.check == "kernel_log")


class Stuck(Scripted):
    """A detector whose device does not answer until it is let go."""

    def __init__(self, name: str) -> None:
        super().__init__(name, [], blocking=True)
        self.released = threading.Event()

    def poll(self) -> list[Alert]:
        self.released.wait(120)
        return super().poll()


async def test_a_driver_that_does_not_answer_has_lost_its_gpus() -> None:
    """Reported once, while the other detectors go on; and once it answers, it is polled again."""
    stuck, other = Stuck("gpu"), Scripted("other", [alert(1.0)], [], blocking=True)
    seen: list[Alert] = []
    quick = LIMITS.intervals.model_copy(update={"stalled_s": 0.05})
    async with running(Inspector("m0", [stuck, other], quick, seen.append)):
        await until(lambda: len(seen) == 2)
        polled = other.polls
        await until(lambda: other.polls > polled + 2)
        stuck.released.set()
        await until(lambda: stuck.polls > 1)
    assert {each.kind for each in seen} == {AlertKind.XID, AlertKind.GPU_LOST}


async def test_a_detector_that_fails_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inspection on command always ends."""
    monkeypatch.setattr("holdfast.agent.inspection.inspector._INSPECT_S", 0.05)
    stuck = Stuck("gpu")

    def inspect() -> list[Finding]:
        stuck.released.wait(120)
        return []

    stuck.inspect = inspect  # type: ignore[method-assign]
    broken = Scripted("broken", [])
    broken.inspect = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    findings = await inspector([], stuck, broken, Scripted("fine", [])).inspect()
    stuck.released.set()
    assert [(each.check, each.ok) for each in findings] == [
        ("gpu", False),
        ("broken", False),
        ("fine", True),
    ]


@pytest.mark.parametrize(
    ("failing", "sure", "looks"), [(0, False, 1), (1, False, 2), (9, False, 3), (9, True, 1)]
)
async def test_only_what_stays_or_is_sure_fails_the_self_check(failing: int, sure: bool, looks: int) -> None:
    """A busy host makes a detector late: it is asked again before the machine joins."""
    asked = 0

    def inspect() -> list[Finding]:
        nonlocal asked
        asked += 1
        return [Finding(check="late", machine="m0", ok=asked > failing, sure=sure)]

    late = Scripted("late", [])
    late.inspect = inspect  # type: ignore[method-assign]
    (finding,) = await inspector([], late).self_check(times=3, pause_s=0.0)
    assert asked == looks
    assert finding.ok is (failing < looks)


async def test_a_disk_that_predicts_its_failure_keeps_no_machine_out() -> None:
    """It explains a failure, so a recovery hears of it; by itself it is no reason to do without the machine."""

    def inspect() -> list[Finding]:
        return [Finding(check="host_fault", machine="m0", ok=False)]

    disk = Scripted("smart", [])
    disk.inspect = inspect  # type: ignore[method-assign]
    looking = inspector([], disk, Scripted("fine", []))
    assert [finding.check for finding in await looking.self_check(pause_s=0.0)] == ["fine"]
    assert [finding.ok for finding in await looking.inspect()] == [False, True]


async def test_what_explains_an_exit_is_looked_at_when_a_rank_ends() -> None:
    """At once, and those two alone; one that fails does not keep the exit back."""
    kills = Scripted("oom_kills", RuntimeError("no"), [alert(1.0, "kill")])
    lines, mounts = Scripted("kernel_log", [alert(1.0, "line")]), Scripted("mounts", [alert(1.0, "mount")])
    seen: list[Alert] = []
    asked = inspector(seen, kills, lines, mounts)
    asked.look_at_exit()
    assert [each.fingerprint.split(":")[0] for each in seen] == ["line"]
    asked.look_at_exit()
    assert [each.fingerprint.split(":")[0] for each in seen] == ["line", "kill"]
    assert mounts.polls == 0
