"""Faults that last: real ones of the kernel, undone by their own process, or by the next after one that was killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import secret
from holdfast.agent.inspection.mounts import Mounts
from holdfast.drivers import processes
from holdfast.drivers.local import LocalDriver, machine_dir
from holdfast.errors import RefusedError, SettingsError, UnavailableError, UnknownError
from holdfast.inject import cgroup, inject, journal, lasting, slow_machine, target
from holdfast.inject.journal import Journal
from holdfast.models.alert import AlertKind
from holdfast.policies.config.policy import Policy
from holdfast.testing.driver_conformance import wait_until
from tests.inject.test_inject import TOY, boot

# Its helper is a process that starts first: only a mount that hangs answers later than this.
LIMITS = Policy.load().detect.storage.model_copy(update={"mount_timeout_s": 60.0})
root = pytest.mark.skipif(os.geteuid() != 0, reason="faults of the kernel take root")
pytestmark = pytest.mark.e2e


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A project with machine m0; nothing of it, and no fault, is left afterwards."""
    secret.create(tmp_path / "secret")
    boot(tmp_path)
    yield tmp_path
    lasting.undo(tmp_path)
    LocalDriver(tmp_path, agent=TOY).retire("m0")


def mounted(folder: Path) -> bool:
    return any(line.split()[1] == str(folder) for line in Path("/proc/self/mounts").read_text().splitlines())


def bad(folder: Path) -> set[AlertKind]:
    """Alert kinds that the agent's own detector sees of the machine."""
    detector = Mounts(folder.parent.parent, LIMITS, folder=folder)
    signs = detector.look()
    for probe in detector._probes.values():
        probe.close()  # type: ignore[attr-defined]
    return {sign.kind for sign in signs if not sign.ok and str(sign.device).startswith(f"{folder}/")}


@root
@pytest.mark.parametrize(
    ("fault", "number", "seen"),
    [
        ("full-disk", errno.ENOSPC, AlertKind.DISK_FULL),
        ("readonly-disk", errno.EROFS, AlertKind.MOUNT_READONLY),
    ],
)
def test_a_broken_disk_refuses_what_is_written_and_is_seen(
    home: Path, fault: str, number: int, seen: AlertKind
) -> None:
    """By the kernel itself, and by the detector; what lay there can be read, and is there as before afterwards."""
    folder = machine_dir(home, "m0")
    data = folder / "data"
    data.mkdir()
    (data / "old").write_text("kept")
    with lasting.lasting(home, fault, "m0") as effect:
        assert str(data) in effect.change
        assert (data / "old").read_text() == "kept"
        with (
            pytest.raises(OSError, match=os.strerror(number)),
            (data / "new").open("wb", buffering=0) as file,
        ):
            file.write(bytes(2**20))
        assert seen in bad(folder)
        other = Mounts(home, LIMITS, folder=machine_dir(home, "m1"))
        assert {sign.device for sign in other.look()} == {str(home)}, "it is no fault of another machine"
        next(iter(other._probes.values())).close()  # type: ignore[attr-defined]
        assert processes.find_agent(folder) is not None
    assert not mounted(data)
    assert {path.name for path in data.iterdir()} == {"old"}
    assert bad(folder) == set()


@root
def test_what_a_killed_injection_left_is_undone_by_the_next(home: Path) -> None:
    """SIGKILL in the middle; an injection that still runs is left alone, unless all are to be undone."""
    data = machine_dir(home, "m0") / "data"
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom holdfast.inject.lasting import lasting\n"
        "with lasting(Path(sys.argv[1]), 'readonly-disk', 'm0'):\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(home)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert mounted(data)
    other = machine_dir(home, "m0") / "other"
    other.mkdir()
    with lasting.lasting(home, "full-disk", "m0", path=other):
        assert not mounted(data)
        assert Journal(home).undo(left_over=True) == []
        assert mounted(other)
        assert lasting.undo(home) == ["full-disk on m0"]
        assert not mounted(other)
    assert lasting.undo(home) == []


@root
def test_only_what_is_ours_is_undone(home: Path) -> None:
    """A file system that another program mounted at the same folder stays, however often the fault is undone."""
    data = machine_dir(home, "m0") / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "theirs", str(data)], check=True)
    try:
        with lasting.lasting(home, "readonly-disk", "m0", path=data):
            lasting.undo(home)
        assert mounted(data)
        (data / "writable").write_text("yes")
    finally:
        subprocess.run(["umount", "-l", str(data)], check=True)


@root
def test_a_slow_machine_waits_for_its_processor(home: Path) -> None:
    """All of its processes have a quota, what they start too; afterwards all are back."""
    folder = machine_dir(home, "m0")
    script = "import os\nfor _ in range(2): os.fork()\nwhile True: pass\n"
    busy = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "HOLDFAST_MACHINE_DIR": str(folder)},
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(processes.find_all(folder)) == 4, what="all of them compute")
        with lasting.lasting(home, "slow-machine", "m0", percent=60):
            (group,) = cgroup.parent_of("cpu").glob("holdfast-slow-*-m0")
            inside = set((group / "cgroup.procs").read_text().split())
            assert {str(process.pid) for process in processes.find_all(folder)} <= inside

            def throttled() -> bool:
                stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
                return int(stat["nr_throttled"]) > 0

            wait_until(throttled, what="it waits")
        assert not group.exists()
        assert busy.poll() is None
    finally:
        os.killpg(busy.pid, signal.SIGKILL)
        busy.wait()


@pytest.mark.parametrize("cores", [0.021, 0.05, 0.3, 1.0, 7.5])
@pytest.mark.parametrize("percent", [10.0, 30.0, 60.0, 90.0])
def test_a_slow_machine_gets_less_than_it_used(cores: float, percent: float) -> None:
    """By so much, however little it used; the kernel's least quota is kept."""
    quota, period = slow_machine.limit(cores, percent)
    assert quota >= slow_machine.LEAST_US
    assert quota / period == pytest.approx(cores * (1 - percent / 100), rel=0.01)


def test_less_than_the_kernel_can_give_is_refused() -> None:
    with pytest.raises(RefusedError, match="less than the kernel can give"):
        slow_machine.limit(0.02, 99.0)


def test_what_cannot_be_done_says_what_it_takes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And changes nothing: no tool, no control group, no network of its own, no S3 of the site's own."""
    with (
        pytest.raises(RefusedError, match="no network of its own"),
        lasting.lasting(home, "packet-loss", "m0"),
    ):
        pass
    with pytest.raises(RefusedError, match="do not run on this host"), lasting.lasting(home, "s3-503", "m0"):
        pass
    with (
        pytest.raises(RefusedError, match="choose a folder"),
        lasting.lasting(home, "full-disk", "m0", path=machine_dir(home, "m0")),
    ):
        pass
    with (
        pytest.raises(SettingsError, match="--percent = 120"),
        lasting.lasting(home, "slow-machine", "m0", percent=120),
    ):
        pass
    with pytest.raises(UnknownError, match="s3-503"):
        inject(home, "earthquake", "m0")
    with pytest.raises(UnavailableError, match="takes root"):
        cgroup.parent_of("cpu", home)
    with pytest.raises(UnavailableError, match="takes root"):
        journal.need(("no-such-tool",), "it takes root")
    assert lasting.undo(home) == []


def test_a_site_that_allows_no_chaos_is_left_alone(home: Path) -> None:
    """As for `holdfast chaos`."""
    (home / "settings.env").write_text("HOLDFAST_CHAOS_ALLOWED=false\n")
    with pytest.raises(RefusedError, match="does not allow"), lasting.lasting(home, "readonly-disk", "m0"):
        pass


def test_without_a_name_the_last_machine_of_the_job_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After incidents machines have other names than at first, and of several jobs none is guessed."""
    jobs = [
        {"state": "running", "machines": ["m10", "m7"], "spec": {"name": "gpt"}},
        {"state": "stopped", "machines": ["m1"], "spec": {"name": "old"}},
    ]
    monkeypatch.setattr(target, "_call", lambda *_: jobs)
    assert target.any_machine(tmp_path) == "m7"
    jobs[1]["state"] = "running"
    with pytest.raises(RefusedError, match="running jobs are gpt, old"):
        target.any_machine(tmp_path)
