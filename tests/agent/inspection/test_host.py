"""Memory, pressure, kills, mounts and remote storage."""

from __future__ import annotations

import errno
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.agent.inspection import mount_helper
from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.host_memory import MemoryCheck
from holdfast.agent.inspection.mount_helper import look
from holdfast.agent.inspection.mount_probe import MountProbe
from holdfast.agent.inspection.mounts import Mounts
from holdfast.agent.inspection.object_store import ObjectStoreAnswers
from holdfast.agent.inspection.oom_kills import OomKills
from holdfast.agent.inspection.pressure import Pressure
from holdfast.agent.inspection.steady import Steady
from holdfast.models.alert import AlertKind
from tests.agent.inspection.kit import LIMITS, HandClock, kinds, polls, steady
from tests.agent.inspection.sysfs import write
from tests.certificates import Authority


class Script:
    """A check whose signs are set by hand."""

    name = "script"

    def __init__(self, misses: int = 1) -> None:
        self.misses = misses
        self.ok = True

    def look(self) -> list[Sign]:
        return [Sign(kind=AlertKind.DISK_FULL, ok=self.ok, detail="d", device="/x", misses=self.misses)]


def test_alert_waits_for_misses_in_a_row_and_fires_once() -> None:
    """A dip is not a fault; a lasting one is one alert; a second one after recovery is another."""
    script, clock = Script(misses=2), HandClock()
    detector = steady(script, clock)
    counts, fingerprints = [], set()
    for ok in (False, True, False, False, False, True, False, False):
        script.ok = ok
        clock.now += 1
        alerts = detector.poll()
        counts.append(len(alerts))
        fingerprints |= {alert.fingerprint for alert in alerts}
    assert counts == [0, 0, 0, 1, 0, 0, 0, 1]
    assert len(fingerprints) == 2


def test_fault_that_does_not_pass_fires_at_once() -> None:
    """With its device and words as evidence."""
    script = Script()
    script.ok = False
    [alert] = steady(script, HandClock()).poll()
    assert (alert.kind, alert.machine) == (AlertKind.DISK_FULL, "m0")
    assert alert.evidence == {"detail": "d", "device": "/x"}


def test_an_inspection_holds_against_a_machine_only_what_is_its_own() -> None:
    """A service that is away would otherwise cost every machine that registers meanwhile."""

    class All:
        name = "all"

        def look(self) -> list[Sign]:
            return [
                Sign(kind=kind, ok=False, detail="d", misses=misses)
                for kind, misses in (
                    (AlertKind.STORAGE_UNREACHABLE, 1),
                    (AlertKind.GPU_THROTTLED, 3),
                    (AlertKind.GPU_SETTINGS, 3),
                    (AlertKind.DISK_FULL, 3),
                    (AlertKind.GPU_LOST, 1),
                )
            ]

    findings = steady(All(), HandClock()).inspect()
    assert [finding.check for finding in findings if not finding.ok] == ["disk_full", "gpu_lost"]
    assert all(finding.detail == "d" for finding in findings)


# Memory and pressure


def test_this_hosts_memory_passes() -> None:
    """The default limit does not accuse a machine that works; one that cannot be met does."""
    assert all(sign.ok for sign in MemoryCheck(LIMITS.host).look())
    strict = LIMITS.host.model_copy(update={"memory_free_share": 0.9999})
    assert kinds(polls(steady(MemoryCheck(strict), HandClock()), 5)) == [AlertKind.MEMORY_PRESSURE]


def test_pressure_that_lasts_is_reported(tmp_path: Path) -> None:
    """Per resource: some wait for a processor, all stall for memory."""
    detector = steady(Pressure(tmp_path, LIMITS.host), HandClock())
    assert detector.poll() == []  # a kernel without PSI

    def press(cpu: float, memory: float) -> None:
        write(tmp_path / "pressure/cpu", f"some avg10=0.0 avg60={cpu} avg300=0.0 total=1\nfull avg60=0.0")
        write(tmp_path / "pressure/memory", f"some avg60=99.0 total=1\nfull avg10=0 avg60={memory} total=1")

    press(79.0, 10.0)
    assert polls(detector, 5) == []
    press(95.5, 60.0)
    found = polls(detector, 5)
    assert kinds(found) == [AlertKind.CPU_PRESSURE, AlertKind.MEMORY_PRESSURE]
    assert (found[0].evidence["value"], found[0].evidence["limit"]) == (0.955, 0.8)
    press(0.0, 0.0)
    assert polls(detector, 3) == []


@pytest.mark.parametrize("text", ["", "some avg60=x", "full", "some avg10=1 total=2"])
def test_pressure_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    """Nothing is read into it."""
    write(tmp_path / "pressure/cpu", text)
    assert Pressure(tmp_path, LIMITS.host).look() == []


def test_kills_are_counted_where_the_kernel_log_cannot_be_read(tmp_path: Path) -> None:
    """Of the host and of the own container; old ones do not count. A control group's count begins at 0."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    write(proc / "vmstat", "pgfault 12\noom_kill 4")
    detector = steady(OomKills(proc, sys), HandClock())
    assert detector.poll() == []
    write(proc / "vmstat", "pgfault 12\noom_kill 6")
    [alert] = detector.poll()
    assert (alert.kind, alert.evidence["value"], alert.evidence["cgroup"]) == (AlertKind.OOM_KILL, 2, False)
    assert detector.poll() == []
    write(sys / "fs/cgroup/memory.events", "low 0\noom 3\noom_kill 1")
    [alert] = detector.poll()
    assert (alert.evidence["value"], alert.evidence["cgroup"]) == (1, True)
    assert detector.poll() == []
    old = steady(OomKills(proc, sys), HandClock())
    assert old.poll() == []  # killed before the agent began


@pytest.mark.parametrize(
    ("cgroup", "counter"),
    [
        ("0::/", "memory.events"),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "{}/memory.events"),
        ("4:cpu,cpuacct:/a\n3:memory:/slurm/uid_0/job_7/step_0\n0::/b", "memory/{}/memory.oom_control"),
        # Of a container, whose group is the root there.
        ("12:memory:/docker/4d5a", "memory/memory.oom_control"),
    ],
)
def test_a_kill_by_the_own_groups_limit_is_the_groups_alone(
    cgroup: str, counter: str, tmp_path: Path
) -> None:
    """The host's kernel counts it, too: that is no second one."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    of_memory = next((line for line in cgroup.splitlines() if "memory" in line), cgroup.splitlines()[-1])
    path = sys / "fs/cgroup" / counter.format(of_memory.split(":")[2].strip("/"))
    write(proc / "self/cgroup", cgroup)
    write(proc / "vmstat", "oom_kill 4")
    write(path, "oom_kill_disable 0\nunder_oom 0\noom_kill 1")
    detector = steady(OomKills(proc, sys), HandClock())
    assert detector.poll() == []
    write(path, "oom_kill_disable 0\nunder_oom 0\noom_kill 3")
    write(proc / "vmstat", "oom_kill 6")
    [alert] = detector.poll()
    assert (alert.evidence["value"], alert.evidence["cgroup"]) == (2, True)
    write(proc / "vmstat", "oom_kill 7")
    [alert] = detector.poll()
    assert (alert.evidence["value"], alert.evidence["cgroup"]) == (1, False)
    write(path, "oom_kill 4")  # the host's count was read just before
    [alert] = detector.poll()
    assert alert.evidence["cgroup"] is True
    write(proc / "vmstat", "oom_kill 8")
    assert detector.poll() == []


# Mounts


class ScriptedProbe:
    """A mount with a scripted answer."""

    answers: ClassVar[dict[str, Any]] = {}
    stuck_s = 7.0

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path

    def look(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.answers[str(self.path)]
        return found


def good(**changes: Any) -> dict[str, Any]:
    return {"free_bytes": 1 << 40, "inodes": 100, "inodes_free": 90, "read_only": False, **changes}


def test_the_type_of_a_mount_is_known_without_a_look_at_it(tmp_path: Path) -> None:
    """The deepest one counts, and of two at one place the later; nothing known is no type."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "systemd-1 /data autofs rw 0 0\n"
        "nas:/data /data nfs4 rw,soft 0 0\n"
        "nas:/b /my\\040data nfs rw 0 0\n"
        "broken\n"
    )
    paths = ("/data", "/data/x", "/database", "/my data/x")
    named = {path: mount_helper.type_of(path, str(mounts)) for path in paths}
    assert named == {"/data": "nfs4", "/data/x": "nfs4", "/database": "ext4", "/my data/x": "nfs"}
    assert mount_helper.type_of("/data", str(tmp_path / "none")) == ""


@pytest.mark.parametrize(
    ("answer", "kind", "lasts"),
    [
        (None, AlertKind.MOUNT_UNRESPONSIVE, False),
        ({"error": "Stale file handle", "errno": "ESTALE"}, AlertKind.MOUNT_UNRESPONSIVE, False),
        ({"error": "not connected", "errno": "ENOTCONN"}, AlertKind.MOUNT_UNRESPONSIVE, False),
        ({"error": "Input/output error", "errno": "EIO"}, AlertKind.DISK_FAULT, False),
        ({"error": "Input/output error", "errno": "EIO", "type": "ext4"}, AlertKind.DISK_FAULT, False),
        ({"error": "soft time-out", "errno": "EIO", "type": "nfs4"}, AlertKind.MOUNT_UNRESPONSIVE, False),
        ({"error": "no answer", "errno": "EIO", "type": "fuse.s3fs"}, AlertKind.MOUNT_UNRESPONSIVE, False),
        ({"error": "shut down", "errno": "ESHUTDOWN"}, AlertKind.MOUNT_UNRESPONSIVE, False),
        ({"error": "Permission denied", "errno": "EACCES"}, AlertKind.MOUNT_UNRESPONSIVE, False),
        ({"error": "No such file or directory", "errno": "ENOENT"}, AlertKind.DISK_FAULT, False),
        (good(read_only=True), AlertKind.MOUNT_READONLY, False),
        (good(free_bytes=1 << 20), AlertKind.DISK_FULL, True),
        (good(inodes_free=0), AlertKind.INODES_FULL, True),
    ],
)
def test_mounts(answer: dict[str, Any] | None, kind: AlertKind, lasts: bool) -> None:
    """Lasting faults fire at once; little space has to last."""
    limits = LIMITS.storage.model_copy(update={"paths": ("/data",)})
    ScriptedProbe.answers = {"/own": good(), "/data": answer}
    detector = steady(Mounts(Path("/own"), limits, ScriptedProbe), HandClock())
    first = detector.poll()
    found = first + polls(detector, limits.misses + 2)
    assert kinds(found) == [kind]
    assert found[0].evidence["device"] == "/data"
    assert bool(first) is not lasts


def test_a_mount_that_stays_away_is_reported_again() -> None:
    """Not at every look, but as often as a port that stays down: that it lasts is evidence."""
    ScriptedProbe.answers = {"/own": None}
    clock = HandClock()
    detector = Steady("m0", Mounts(Path("/own"), LIMITS.storage, ScriptedProbe), 2, again_s=30, clock=clock)
    alerts = []
    for _ in range(40):
        clock.now += 2
        alerts += detector.poll()
    assert len(alerts) == 3
    assert len({alert.fingerprint for alert in alerts}) == 3


def test_file_systems_that_count_no_inodes_are_not_full() -> None:
    """Such as btrfs and many network file systems."""
    ScriptedProbe.answers = {"/own": good(inodes=0, inodes_free=0)}
    assert all(sign.ok for sign in Mounts(Path("/own"), LIMITS.storage, ScriptedProbe).look())


def test_the_helper_looks_at_real_file_systems(tmp_path: Path) -> None:
    """Through a process of its own, which stays for the next look."""
    probe = MountProbe(tmp_path, 60.0)
    try:
        found = probe.look()
        assert found is not None
        assert found["free_bytes"] > 0
        assert not found["read_only"]
        helper = probe._helper
        assert helper is not None
        assert probe.look() is not None
        assert probe._helper is helper
    finally:
        probe.close()


def test_a_path_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """Named as the system does."""
    assert look(str(tmp_path / "gone"))["errno"] == errno.errorcode[errno.ENOENT]
    detector = steady(Mounts(tmp_path / "gone", LIMITS.storage), HandClock())
    assert kinds(detector.poll()) == [AlertKind.DISK_FAULT]


def test_a_mount_that_does_not_answer_does_not_hold_up_the_agent(tmp_path: Path) -> None:
    """The helper is stopped, as if stuck in the kernel: one short wait, then none until it is gone."""
    probe = MountProbe(tmp_path, 60.0)
    try:
        assert probe.look() is not None
        stuck = probe._helper
        assert stuck is not None
        probe._timeout_s = 0.2
        os.kill(stuck.pid, signal.SIGSTOP)
        assert probe.look() is None
        assert probe.stuck_s > 0.2
        # It was killed, and a stopped process dies of that: the next look has a new helper.
        stuck.wait(60)
        probe._timeout_s = 60.0
        assert probe.look() is not None
        assert probe.stuck_s == 0.0
    finally:
        probe.close()


def test_a_host_that_is_slow_is_not_taken_for_a_dead_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that could run is given more time than one that the kernel holds."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys, time\nfor line in sys.stdin:\n    time.sleep(0.3)\n    print('{}', flush=True)\n"
    )
    monkeypatch.setattr("holdfast.agent.inspection.mount_probe.HELPER", slow)
    monkeypatch.setattr("holdfast.agent.inspection.mount_probe._PATIENCE", 200)
    probe = MountProbe(tmp_path, 0.1)
    try:
        assert probe.look() == {}
        assert probe.stuck_s == 0.0
    finally:
        probe.close()


def test_while_a_helper_cannot_die_no_second_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for a dead server survives SIGKILL: there is never more than one per mount."""
    probe = MountProbe(tmp_path, 60.0)
    try:
        assert probe.look() is not None
        stuck = probe._helper
        assert stuck is not None
        probe._timeout_s = 0.1
        monkeypatch.setattr(stuck, "kill", lambda: None)
        os.kill(stuck.pid, signal.SIGSTOP)
        assert [probe.look() for _ in range(3)] == [None, None, None]
        assert probe._helper is stuck
        monkeypatch.undo()
        os.kill(stuck.pid, signal.SIGCONT)
        stuck.kill()
        stuck.wait(60)
        probe._timeout_s = 60.0
        assert probe.look() is not None
    finally:
        probe.close()


# Remote storage


class Answering(BaseHTTPRequestHandler):
    """Answers with the status that is set on the server."""

    def do_HEAD(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def endpoint() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def store(port: int, timeout_s: float = 60.0) -> ObjectStoreAnswers:
    limits = LIMITS.storage.model_copy(update={"s3_timeout_s": timeout_s})
    return ObjectStoreAnswers(f"http://127.0.0.1:{port}", limits)


def test_any_answer_will_do(endpoint: ThreadingHTTPServer) -> None:
    """A refusal is an answer, and so is that of a store that knows no HEAD; an error of the server is none."""
    check = store(endpoint.server_port)
    for status, ok in ((200, True), (403, True), (501, True), (503, False)):
        endpoint.status = status  # type: ignore[attr-defined]
        assert [sign.ok for sign in check.look()] == [ok]


def test_an_endpoint_is_certified_by_the_authority_that_boto3_goes_by(
    endpoint: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store with a certificate of the site's own authority is not away; one whose authority is not known is."""
    authority = Authority(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*authority.certify("s3", "127.0.0.1"))
    endpoint.status = 200  # type: ignore[attr-defined]
    endpoint.socket = serving.wrap_socket(endpoint.socket, server_side=True)
    limits = LIMITS.storage.model_copy(update={"s3_timeout_s": 60.0})
    check = ObjectStoreAnswers(f"https://127.0.0.1:{endpoint.server_port}", limits)
    seen: dict[str, bool] = {}
    for bundle in ("", str(authority.ca), str(tmp_path / "missing")):
        monkeypatch.setenv("AWS_CA_BUNDLE", bundle)
        (seen[bundle],) = [sign.ok for sign in check.look()]
    assert list(seen.values()) == [False, True, False]


def test_an_endpoint_that_is_away_is_reported_at_the_second_look() -> None:
    """No process listens; and one that takes connections and sends nothing is given up."""
    with socket.socket() as held:  # so that no other process listens there meanwhile
        held.bind(("127.0.0.1", 0))
        detector = steady(store(held.getsockname()[1]), HandClock())
        assert detector.poll() == []
        [alert] = detector.poll()
    assert alert.kind is AlertKind.STORAGE_UNREACHABLE
    assert "ConnectError" in alert.evidence["error"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert [sign.ok for sign in store(silent.getsockname()[1], 0.1).look()] == [False]


def test_an_inspection_on_command_does_not_wait_for_s3() -> None:
    """An S3 that hangs is reported by polling alone: recoveries ask for inspections."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        detector = Steady("m0", store(hanging.getsockname()[1], 0.2), 30.0, blocking=True, on_command=False)
        assert detector.inspect() == []
        polled = [detector.poll() for _ in range(5)]
    assert [alert.kind for alerts in polled for alert in alerts] == [AlertKind.STORAGE_UNREACHABLE]
