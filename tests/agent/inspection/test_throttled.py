"""A processor quota that is used up: read from files as the kernel writes them, and from the kernel itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.inspection.throttled import Throttled
from holdfast.errors import UnavailableError
from holdfast.inject import cgroup
from holdfast.models.alert import AlertKind
from tests.agent.inspection.kit import LIMITS, HandClock, polls, steady

V1 = "12:cpu,cpuacct:/kubepods/pod1\n4:memory:/kubepods/pod1\n0::/\n"
V2 = "0::/kubepods/pod1\n"


class Host:
    """A process's membership, and one group."""

    def __init__(self, folder: Path, membership: str, hierarchy: str) -> None:
        (folder / "self").mkdir(parents=True)
        (folder / "self/cgroup").write_text(membership)
        self.proc, self.cgroups = folder, folder / "cgroup"
        self.group = self.cgroups / hierarchy / "kubepods/pod1"
        self.group.mkdir(parents=True)
        self.periods = self.waited = 0
        self.count(0, 0)

    def count(self, periods: int, waited: int) -> None:
        """So many more periods, and of these so many without quota left."""
        self.periods, self.waited = self.periods + periods, self.waited + waited
        counters = f"nr_periods {self.periods}\nnr_throttled {self.waited}\nthrottled_time 1\n"
        (self.group / "cpu.stat").write_text(counters)

    def check(self, *, born_shared: bool = False) -> Throttled:
        """Of this host."""
        return Throttled(LIMITS.host, self.proc, self.cgroups, born_shared=born_shared)


@pytest.mark.parametrize(
    ("membership", "hierarchy"), [(V1, "cpu,cpuacct"), (V1, "cpu"), (V2, "")], ids=["v1", "v1-link", "v2"]
)
def test_a_quota_that_is_used_up_again_and_again_is_reported(
    tmp_path: Path, membership: str, hierarchy: str
) -> None:
    """After as many bad looks as any pressure; a burst is none."""
    host = Host(tmp_path, membership, hierarchy)
    detector = steady(host.check(), HandClock())
    assert polls(detector, 1) == []
    host.count(100, 95)
    assert polls(detector, 1) == []
    host.count(100, 20)
    assert polls(detector, 1) == []
    alerts = []
    for _ in range(LIMITS.host.misses):
        host.count(100, 95)
        alerts += polls(detector, 1)
    (alert,) = alerts
    assert (alert.kind, alert.evidence["device"]) == (AlertKind.CPU_PRESSURE, "quota")
    assert alert.evidence["value"] == pytest.approx(0.95)


def test_an_idle_group_and_one_without_a_quota_say_nothing(tmp_path: Path) -> None:
    """The kernel counts no periods of a group that does nothing."""
    host = Host(tmp_path, V2, "")
    check = host.check()
    check.look()
    host.count(2, 2)
    assert all(sign.ok for sign in check.look())
    (host.group / "cpu.stat").write_text("usage_usec 5\n")
    assert check.look() == []
    (host.proc / "self/cgroup").unlink()
    assert check.look() == []


def test_the_group_that_machines_of_one_host_share_accuses_none_of_them(tmp_path: Path) -> None:
    """A machine of the local driver is judged by a group that it was moved into."""
    host = Host(tmp_path, V2, "")
    check = host.check(born_shared=True)
    for _ in range(3):
        host.count(100, 95)
        assert check.look() == []
    own = host.cgroups / "own"
    own.mkdir()
    (host.proc / "self/cgroup").write_text("0::/own\n")
    (own / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\n")
    assert check.look() == []
    (own / "cpu.stat").write_text("nr_periods 100\nnr_throttled 99\n")
    (sign,) = check.look()
    assert not sign.ok


REAL = """
import sys, time
from pathlib import Path
from holdfast.agent.inspection.throttled import Throttled
from tests.agent.inspection.kit import LIMITS
print("ready", flush=True)  # imports are not made to wait
sys.stdin.readline()
check = Throttled(LIMITS.host, Path("/proc"), Path("/sys/fs/cgroup"))
check.look()
until = time.monotonic() + 30
while time.monotonic() < until:
    spin = time.monotonic() + 0.5
    while time.monotonic() < spin:
        pass
    (sign,) = check.look()
    if not sign.ok:
        break
print(sign.ok, sign.value)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups take root")
def test_the_kernel_counts_as_it_is_read() -> None:
    """A process that spins against a quota of a tenth of a processor, in a group of its own."""
    try:
        parent = cgroup.parent_of("cpu")
    except UnavailableError as error:
        pytest.skip(str(error))
    folder = parent / f"holdfast-test-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", REAL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            limits = {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "2000", "cpu.max": "2000 20000"}
            cgroup.make(folder, limits, [process.pid])
            out, _ = process.communicate("go\n", timeout=240)
        finally:
            process.kill()
            cgroup.dissolve(folder, parent)
    assert out.startswith("False"), out
