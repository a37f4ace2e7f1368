"""Faults against a real process tree: each does what its name states, and refuses what it cannot do."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast import drivers, secret
from holdfast.agent.inspection.xid_line import parse
from holdfast.drivers import processes
from holdfast.drivers.base import Supplied
from holdfast.drivers.local import LocalDriver, machine_dir, shm_dir
from holdfast.errors import RefusedError, UnknownError
from holdfast.inject import FAULTS, inject
from holdfast.inject.target import Target
from holdfast.models.machine import Scope
from holdfast.testing.driver_conformance import wait_until

TOY = (sys.executable, str(Path(__file__).parent / "toy_machine.py"))

pytestmark = pytest.mark.e2e


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A project; all of its machines are gone afterwards."""
    secret.create(tmp_path / "secret")
    yield tmp_path
    driver = LocalDriver(tmp_path, agent=TOY)
    for machine in driver.machines():
        driver.retire(machine.name)


def boot(home: Path) -> dict[int, int]:
    """Start machine m0; returns its ranks' pids."""
    assert LocalDriver(home, agent=TOY).provision(1) == ["m0"]
    card = machine_dir(home, "m0") / "agent.json"
    wait_until(card.exists)
    return {int(rank): pid for rank, pid in json.loads(card.read_text())["ranks"].items()}


def state(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"


def dead(pid: int) -> bool:
    return state(pid) in ("gone", psutil.STATUS_ZOMBIE)


def test_kill_rank_kills_that_rank_only(home: Path) -> None:
    """The rank that was named; its neighbour lives."""
    pids = boot(home)
    done = inject(home, "kill-rank", "m0", 3)
    assert (done.fault, done.machine, done.rank) == ("kill-rank", "m0", 3)
    assert abs(done.at - time.time()) < 60
    wait_until(lambda: dead(pids[3]))
    assert not dead(pids[2])


def test_rank_that_is_not_named_is_the_machines_first(home: Path) -> None:
    """Ranks of a replay do not count."""
    pids = boot(home)
    assert inject(home, "hang-rank", "m0").rank == 2
    wait_until(lambda: state(pids[2]) == psutil.STATUS_STOPPED)
    assert state(pids[3]) != psutil.STATUS_STOPPED


def test_kill_machine_leaves_nothing_of_it(home: Path) -> None:
    """No process, no disk, no memory; the driver still knows the name, and lists it as dead."""
    boot(home)
    folder = machine_dir(home, "m0")
    assert len(processes.find_all(folder)) >= 3
    inject(home, "kill-machine", "m0")
    assert processes.find_all(folder) == []
    assert not folder.exists()
    assert not shm_dir(home, "m0").exists()
    [machine] = LocalDriver(home, agent=TOY).machines()
    assert not machine.alive
    assert LocalDriver(home, agent=TOY).provision(1) == ["m1"]


def test_xid_79_is_a_line_that_the_detector_knows(home: Path) -> None:
    """It is appended to what is there."""
    boot(home)
    log = machine_dir(home, "m0") / "kernel.log"
    log.write_text("before\n")
    inject(home, "xid-79", "m0")
    before, line = log.read_text().splitlines()
    found = parse(line)
    assert before == "before"
    assert found is not None
    assert found.lost


def test_xid_is_not_written_to_a_log_that_is_not_the_machines(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own kernel log is left alone."""
    boot(home)
    monkeypatch.setenv("HOLDFAST_KERNEL_LOG", str(home / "shared.log"))
    with pytest.raises(RefusedError, match=r"shared\.log"):
        inject(home, "xid-79", "m0")
    assert not (home / "shared.log").exists()


@pytest.mark.parametrize(
    ("fault", "rank"), [("bad-matmul", None), ("wrong-bits", None), ("nan", 2), ("flip-bit", 2)]
)
def test_faults_of_arithmetic_reach_armed_machines_only(
    home: Path, monkeypatch: pytest.MonkeyPatch, fault: str, rank: int | None
) -> None:
    """The refusal on an unarmed machine shows how to arm it."""
    monkeypatch.setenv("HOLDFAST_ARM_FAULTS", "1")
    boot(home)
    assert inject(home, fault, "m0").rank == rank
    planted = json.loads((machine_dir(home, "m0") / "faults" / f"{fault}.json").read_text())
    assert planted.get("rank") == rank
    monkeypatch.delenv("HOLDFAST_ARM_FAULTS")
    LocalDriver(home, agent=TOY).retire("m0")
    LocalDriver(home, agent=TOY).provision(1)
    wait_until((machine_dir(home, "m1") / "agent.json").exists)
    with pytest.raises(RefusedError, match="HOLDFAST_ARM_FAULTS=1"):
        inject(home, fault, "m1")
    assert not (machine_dir(home, "m1") / "faults").exists()


def test_unknown_names_are_refused_with_what_there_is(home: Path) -> None:
    """Fault, machine and rank, each with the list to choose from."""
    boot(home)
    with pytest.raises(UnknownError, match="kill-rank, kill-machine"):
        inject(home, "flood", "m0")
    with pytest.raises(UnknownError, match=r"'m7'.*m0"):
        inject(home, "kill-rank", "m7")
    with pytest.raises(UnknownError, match="Ranks there: 2, 3"):
        inject(home, "kill-rank", "m0", 9)


@pytest.mark.parametrize("fault", ["kill-rank", "hang-rank", "nan", "flip-bit", "code-bug"])
def test_faults_of_a_job_need_one(home: Path, fault: str) -> None:
    """A standby has no rank to break."""
    (home / "no-job").touch()
    boot(home)
    with pytest.raises(RefusedError, match="runs on machine m0"):
        inject(home, fault, "m0")


@pytest.mark.parametrize("fault", list(FAULTS))
def test_dead_machine_cannot_be_broken_again(home: Path, fault: str) -> None:
    """Whatever the fault."""
    boot(home)
    LocalDriver(home, agent=TOY).evict("m0", Scope.CLUSTER, "test")
    with pytest.raises(RefusedError, match="not up"):
        inject(home, fault, "m0")


def test_code_bug_ships_a_version_with_a_bug(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current version is checked out, patched, stored, and sent as an update."""
    boot(home)
    stored: dict[str, str] = {}
    calls: list[tuple[str, str, Any]] = []

    def gateway(_: Target, method: str, path: str, body: Any = None) -> Any:
        calls.append((method, path, body))
        spec = {"name": "gpt", "script": "train.py", "machines": 1, "ranks_per_machine": 2}
        return {
            "spec": spec,
            "state": "running",
            "epoch": 1,
            "code_version": "0123456789ab",
            "machines": ["m0"],
            "submitted_at": 0,
        }

    def checkout(_: object, job: str, version: str, dest: Path) -> Path:
        assert (job, version) == ("gpt", "0123456789ab")
        dest.mkdir()
        (dest / "train.py").write_text("def main():\n    session.step(step, loss=1)\n")
        return dest

    def store(_: object, job: str, path: Path) -> str:
        stored[job] = (path / "train.py").read_text()
        return "badbadbadbad"

    monkeypatch.setattr(Target, "gateway", gateway)
    monkeypatch.setattr("holdfast.storage.code.versions.checkout", checkout)
    monkeypatch.setattr("holdfast.storage.code.versions.store", store)
    inject(home, "code-bug", "m0")
    assert "len(step)" in stored["gpt"]
    assert [call[:2] for call in calls] == [("GET", "/v1/jobs/gpt"), ("POST", "/v1/jobs/gpt/update")]
    assert calls[1][2]["version"] == "badbadbadbad"
    assert calls[1][2]["when"] == "now"


def test_machine_on_another_host_is_not_broken_from_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pids are those of another host: a card of a process that does not run here names no process."""
    (home / "settings.env").write_text("HOLDFAST_DRIVER=slurm\n")
    folder = machine_dir(home, "node1")
    folder.mkdir(parents=True)
    victim = psutil.Process().pid
    (folder / "agent.json").write_text(
        json.dumps({"pid": victim, "create_time": 1.0, "address": "10.0.0.1:1"})
    )

    class Elsewhere:
        """A driver of Slurm's, for which it runs."""

        def machines(self) -> list[Supplied]:
            return [Supplied(name="node1", alive=True)]

    monkeypatch.setattr(drivers, "from_settings", lambda _: Elsewhere())
    with pytest.raises(RefusedError, match="does not run on this host"):
        inject(home, "kill-machine", "node1")
    assert folder.exists()
