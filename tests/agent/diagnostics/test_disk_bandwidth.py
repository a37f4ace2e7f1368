"""The disk check on a real disk: its value, a disk that is throttled underneath, and what it does not test."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.agent.diagnostics import check_process, disk_bandwidth
from holdfast.agent.diagnostics.check_part import CheckOutcome
from holdfast.agent.diagnostics.machine_checks import run_check
from holdfast.errors import UnavailableError
from holdfast.inject import cgroup
from holdfast.models.agent import Check, Diagnose
from holdfast.models.alert import Finding
from holdfast.policies.diagnose.verdicts import judge
from tests.agent.diagnostics.test_diagnostics import ScriptedForks

MEASURE = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from holdfast.agent.diagnostics import disk_bandwidth
sys.stdin.readline()
print(json.dumps(asdict(disk_bandwidth.measure(Path(sys.argv[1])))))
"""
SLOW_BYTES_S = 2 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """On a disk of this host."""
    if why := disk_bandwidth.measure(tmp_path).untested:
        pytest.skip(why)
    return tmp_path


@contextlib.contextmanager
def throttled(device: str) -> Iterator[Path]:
    """A control group whose processes write and read at :data:`SLOW_BYTES_S`."""
    try:
        parent = cgroup.parent_of("blkio")
    except UnavailableError:
        try:
            parent = cgroup.parent_of("io")
        except UnavailableError as error:
            pytest.skip(str(error))
    group = parent / f"holdfast-test-{os.getpid()}"
    limits = {f"blkio.throttle.{way}_bps_device": f"{device} {SLOW_BYTES_S}" for way in ("read", "write")} | {
        "io.max": f"{device} rbps={SLOW_BYTES_S} wbps={SLOW_BYTES_S}"
    }
    try:
        cgroup.make(group, limits, [])
    except UnavailableError as error:
        pytest.skip(str(error))
    try:
        yield group
    finally:
        cgroup.dissolve(group, parent)


def measured(folder: Path, group: Path | None = None) -> CheckOutcome:
    """In a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", MEASURE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        if group is not None:
            (group / "cgroup.procs").write_text(str(process.pid))
        out, _ = process.communicate("go\n", timeout=120)
    fields = json.loads(out)
    return CheckOutcome(**{**fields, "wrong_bytes": {}})


async def found(machine: str, outcome: CheckOutcome) -> list[Finding]:
    """Findings, as the machine's agent reports them."""
    command = Diagnose(job="j", epoch=1, incarnation="i", check=Check.DISK, processes=8, timeout_s=60)
    forks = ScriptedForks(outcome)
    findings = await run_check(command, forks, machine=machine)
    assert len(forks.parts) == 1, "one for the machine, however many ranks it has"
    return findings


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups take root")
async def test_a_throttled_disk_is_named_among_its_equals(folder: Path) -> None:
    """The kernel's own limit underneath: nothing fails, and every byte comes back."""
    number = folder.stat().st_dev
    with throttled(f"{os.major(number)}:{os.minor(number)}") as group:
        slow = measured(folder, group)
    outcomes = {f"m{at}": measured(folder) for at in range(3)} | {"m3": slow}
    # Other work of this host's disk, of which each machine would have its own.
    quiet = {name: CheckOutcome(**{**asdict(outcome), "busy": 0.0}) for name, outcome in outcomes.items()}
    findings = [one for name, outcome in quiet.items() for one in await found(name, outcome)]
    assert all(one.ok and one.unit == "MB/s" for one in findings), findings
    # A factor of 5: other work of this host's disk makes equals differ, the throttled one is hundreds of times slower.
    assert judge(findings, 5.0).suspects == ("m3",), [one.detail for one in findings]
    assert judge(findings).suspects == (), "a crash is not explained by slowness"


async def test_a_disk_that_several_machines_write_to_accuses_none(tmp_path: Path) -> None:
    """Machines that share a host, or a disk that the job itself keeps busy."""
    values = {"m0": 400.0, "m1": 420.0, "m2": 410.0, "m3": 40.0}
    findings = [
        one
        for name, value in values.items()
        for one in await found(name, CheckOutcome(value=value, unit="MB/s", repeats=3, busy=0.6, kind="disk"))
    ]
    verdict = judge(findings, 1.5)
    assert verdict.suspects == ()
    assert "pace not known on m0, m1, m2, m3: they are busy with other work" in verdict.evidence


async def test_what_cannot_be_tested_accuses_no_machine(tmp_path: Path) -> None:
    """A file system of a network, or of memory; or no room."""
    blocks = tmp_path / "blocks"
    blocks.mkdir()
    outcome = disk_bandwidth.measure(tmp_path, blocks)
    assert "is on no block device" in outcome.untested
    (finding,) = await found("m0", outcome)
    assert finding.ok
    assert finding.value is None
    assert finding.detail.startswith("process 0: not tested: ")


@pytest.mark.parametrize(
    ("call", "number", "why"),
    [("open", errno.EOPNOTSUPP, "without a name"), ("pwritev", errno.EDQUOT, "no room is left")],
)
async def test_a_file_system_that_cannot_or_a_quota_accuses_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, why: str
) -> None:
    """The disk was not asked; one that fails to write is bad."""
    blocks = tmp_path / "blocks"
    device = blocks / disk_bandwidth._number(tmp_path)
    device.mkdir(parents=True)
    (device / "stat").write_text("1 0 8 0 1 0 8 0 0 0 0\n")

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    def named(folder: Path) -> int:
        return os.open(folder / "named", os.O_RDWR | os.O_CREAT, 0o600)

    with monkeypatch.context() as patched:
        patched.setattr(disk_bandwidth, "SPARE", 0)
        if call != "open":
            patched.setattr(disk_bandwidth, "_open", named)
        patched.setattr(os, call, fails)
        outcome = disk_bandwidth.measure(tmp_path, blocks)
    assert why in outcome.untested
    (finding,) = await found("m0", outcome)
    assert finding.ok
    assert judge([finding], 1.5).suspects == ()


def test_nothing_is_left_behind(folder: Path) -> None:
    """The file has no name at any time."""
    before = sorted(folder.iterdir())
    outcome = disk_bandwidth.measure(folder)
    assert sorted(folder.iterdir()) == before
    assert outcome.value
    assert outcome.value > 0
    assert outcome.repeats in (1, disk_bandwidth.ROUNDS)
    assert not outcome.wrong


async def test_bytes_that_come_back_damaged_are_sure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other machine can be the cause."""
    right = os.preadv

    def damaged(file: int, buffers: list[memoryview], offset: int) -> int:
        count = right(file, buffers, offset)
        buffers[0][100] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", damaged)
    outcome = disk_bandwidth.measure(folder)
    (finding,) = await found("m1", outcome)
    assert (finding.ok, finding.sure) == (False, True)
    assert "bytes came back damaged" in finding.detail
    assert judge([finding]).suspects == ("m1",)


def test_it_is_one_of_the_checks() -> None:
    """By its name."""
    assert check_process.CHECKS[Check.DISK] is disk_bandwidth.disk
