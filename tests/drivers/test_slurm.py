"""The Slurm driver where it meets the command line: a scripted one, that fails as Slurm's commands do."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.drivers import from_settings
from holdfast.drivers.base import Drains
from holdfast.drivers.slurm import SlurmDriver, listing
from holdfast.drivers.slurm.commands import CommandAnswer, SlurmCommands
from holdfast.drivers.slurm.nodes import SlurmNodes
from holdfast.drivers.slurm_settings import SlurmSettings
from holdfast.errors import (
    AnewError,
    HoldfastError,
    RefusedError,
    SettingsError,
    UnavailableError,
    UnknownError,
)
from holdfast.models.machine import Scope
from holdfast.settings import Settings
from tests.retries import HandClock, by_hand

AWAY = CommandAnswer(
    status=1, err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
)
FINE = CommandAnswer(status=0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """Time passes only while a command waits to be repeated: however slow the host, there are as many tries."""
    return by_hand(monkeypatch)


class Scripted:
    """Answers each command by its name, and remembers all."""

    def __init__(self, **answers: Callable[[Sequence[str]], CommandAnswer]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []
        self.env: Mapping[str, str] = {}

    def __call__(self, command: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> CommandAnswer:
        self.asked.append(list(command))
        self.env = env
        return self.answers.get(command[0], lambda _: FINE)(command)

    def count(self, name: str) -> int:
        """How often a command was called."""
        return sum(command[0] == name for command in self.asked)


class Queue:
    """squeue and sbatch of a cluster that starts a job at once on the next free node."""

    def __init__(self, nodes: int = 4, lost_answers: int = 0) -> None:
        self.jobs: dict[int, tuple[str, str, str]] = {}
        self.free = [f"node{i}" for i in range(1, nodes + 1)]
        self.lost_answers = lost_answers
        self.gone: tuple[str, ...] = ()

    def sbatch(self, command: Sequence[str]) -> CommandAnswer:
        """Takes the job; the answer may get lost."""
        (comment,) = [word.partition("=")[2] for word in command if word.startswith("--comment=")]
        if any(word in (f"--exclude={name}", f"--nodelist={name}") for word in command for name in self.gone):
            said = "sbatch: error: Batch job submission failed: Invalid node name specified"
            return CommandAnswer(status=1, err=said)
        state, node = ("RUNNING", self.free.pop(0)) if self.free else ("PENDING", "")
        self.jobs[len(self.jobs) + 1] = (state, node, comment)
        if self.lost_answers:
            self.lost_answers -= 1
            raise subprocess.TimeoutExpired("sbatch", 15)
        return CommandAnswer(status=0, out=f"{len(self.jobs)};lab\n")

    def squeue(self, command: Sequence[str]) -> CommandAnswer:
        """All jobs."""
        rows = [f"{i}|{state}|{node}|None|{comment}" for i, (state, node, comment) in self.jobs.items()]
        return CommandAnswer(status=0, out="\n".join(rows))

    def sinfo(self, command: Sequence[str]) -> CommandAnswer:
        """All nodes that are asked for are well; of those that are gone it says nothing."""
        asked = [word.partition("=")[2] for word in command if word.startswith("--nodes=")]
        names = asked[0].split(",") if asked else self.free
        known = [name for name in names if name not in self.gone]
        return CommandAnswer(status=0, out="\n".join(f"{name}|idle|none" for name in known))

    def forget(self, *gone: str) -> None:
        """slurmctld was started anew with a slurm.conf without these nodes: as 22.05 answers then."""
        self.gone = gone
        for i, (_, node, comment) in self.jobs.items():
            if node in gone:
                self.jobs[i] = ("NODE_FAIL", node, comment)

    def scontrol(self, command: Sequence[str]) -> CommandAnswer:
        """Refuses what names a node that is gone."""
        if any(word in (name, f"nodename={name}") for word in command for name in self.gone):
            return CommandAnswer(status=1, err="slurm_update error: Invalid node name specified")
        return FINE

    def runner(self) -> Scripted:
        """To run commands with."""
        return Scripted(sbatch=self.sbatch, squeue=self.squeue, sinfo=self.sinfo, scontrol=self.scontrol)


def driver(home: Path, run: Scripted, **settings: object) -> SlurmDriver:
    own = SlurmSettings.model_validate({"start_s": 0.01, "kill_s": 0.01, "patience_s": 0.3, **settings})
    return SlurmDriver(Settings(home=home), own, run=run, agent=("agent",))


@pytest.mark.usefixtures("clock")
def test_a_command_is_repeated_while_slurmctld_is_away() -> None:
    """Two failures, then an answer."""
    answers = [AWAY, AWAY, CommandAnswer(status=0, out="fine")]
    run = Scripted(squeue=lambda _: answers.pop(0))
    assert SlurmCommands({}, patience_s=10, run=run)("squeue") == "fine"
    assert run.count("squeue") == 3


@pytest.mark.usefixtures("clock")
def test_patience_ends() -> None:
    """The error names the command and what Slurm said."""
    run = Scripted(squeue=lambda _: AWAY)
    with pytest.raises(UnavailableError, match=r"`squeue -h`.*Unable to contact"):
        SlurmCommands({}, patience_s=0.2, run=run)("squeue", "-h")
    assert run.count("squeue") >= 2


def test_a_command_that_blocks_is_unavailable() -> None:
    """With a dead slurmctld squeue blocks; we do not."""

    def block(_: Sequence[str]) -> CommandAnswer:
        raise subprocess.TimeoutExpired("squeue", 15)

    with pytest.raises(UnavailableError, match=r"within 9 s.*slurmctld"):
        SlurmCommands({}, patience_s=0.05, command_s=9, run=Scripted(squeue=block))("squeue")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("slurm_update error: Invalid user id", RefusedError),
        ("scancel: error: Kill job error on job id 2: Access/permission denied", RefusedError),
        ("slurm_update error: Invalid node name specified", UnknownError),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", SettingsError),
        ("sbatch: unrecognized option '--foo'", SettingsError),
        (
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            UnavailableError,
        ),
        ("slurm_load_jobs error: Protocol authentication error", UnavailableError),
        ("scancel: error: Kill job error on job id 2: Message receive failure", UnavailableError),
    ],
)
def test_what_slurm_says_is_told_apart(said: str, error: type[HoldfastError]) -> None:
    """Messages of 22.05; only what may pass is repeated."""
    run = Scripted(x=lambda _: CommandAnswer(status=1, err=said))
    with pytest.raises(error):
        SlurmCommands({}, patience_s=0.2, run=run)("x")
    assert (run.count("x") > 1) is (error is UnavailableError)


def test_missing_commands_are_named(tmp_path: Path) -> None:
    """The real runner, where there is no Slurm."""
    with pytest.raises(SettingsError, match="squeue"):
        SlurmDriver(Settings(home=tmp_path), env={"PATH": str(tmp_path)}).machines()


def test_lost_answer_of_sbatch_makes_no_second_allocation(tmp_path: Path) -> None:
    """What Slurm took without saying so is found by its comment."""
    queue = Queue(lost_answers=2)
    assert driver(tmp_path, queue.runner(), patience_s=10).provision(2) == ["node1", "node2"]
    assert len(queue.jobs) == 2


def test_job_is_known_by_its_comment_beside_that_of_the_site(tmp_path: Path) -> None:
    """Some sites want one, of two sbatch heeds the last, and without ours a queued job would not count."""
    queue = Queue(nodes=0)
    run = queue.runner()
    asked = driver(tmp_path, run, options="--comment='project 7'")

    def sbatch(command: Sequence[str]) -> CommandAnswer:
        *_, last = [word for word in command if word.startswith("--comment")]
        return queue.sbatch([last])

    run.answers["sbatch"] = sbatch
    asked.provision(1)
    asked.provision(1)
    ((_, _, comment),) = queue.jobs.values()
    assert comment.startswith("holdfast group=#")
    assert comment.endswith(" project 7")


@pytest.mark.parametrize("lost", [False, True])
def test_job_id_is_found_among_what_a_site_prints(tmp_path: Path, lost: bool) -> None:
    """Some sites' filters greet whoever submits; without an id the job is found by its comment."""
    queue = Queue()
    run = queue.runner()

    def sbatch(command: Sequence[str]) -> CommandAnswer:
        printed = queue.sbatch(command).out
        banner = "-----\n  Welcome to the cluster\n-----\n--> Verifying 1 node ... OK\n"
        return CommandAnswer(status=0, out=banner if lost else banner + printed)

    run.answers["sbatch"] = sbatch
    assert driver(tmp_path, run, patience_s=10).provision(1) == ["node1"]
    assert len(queue.jobs) == 1


def test_what_waits_in_the_queue_counts_as_asked_for(tmp_path: Path) -> None:
    """Asking again while nothing is free does not fill the queue; what starts later is a machine."""
    queue = Queue(nodes=1)
    asked = driver(tmp_path, queue.runner())
    assert asked.provision(3) == ["node1"]
    assert asked.provision(2) == []
    assert len(queue.jobs) == 3
    assert asked.provision(3) == []
    assert len(queue.jobs) == 4
    queue.jobs[2] = ("RUNNING", "node7", queue.jobs[2][2])
    assert [machine.name for machine in asked.machines()] == ["node1", "node7"]


def test_request_that_waited_long_may_get_the_node_of_a_later_one(tmp_path: Path) -> None:
    """Its id is smaller than that of the allocation that has ended there; so it is where ids begin again."""
    queue = Queue(nodes=1)
    asked = driver(tmp_path, queue.runner())
    asked.provision(1)
    queue.jobs = {
        900: ("NODE_FAIL", "node1", queue.jobs[1][2]),
        800: ("RUNNING", "node1", "holdfast group=#b"),
    }
    (tmp_path / "slurm.json").write_text('{"machines": {"node1": {"job": 900}}}')
    (seen,) = asked.machines()
    assert seen.alive
    assert seen.detail.startswith("job 800;")


def test_user_whom_slurm_shows_no_nodes_has_machines(tmp_path: Path) -> None:
    """With `PrivateData=nodes` sinfo is for operators: nothing is drained, and evicted nodes are excluded by name."""
    queue = Queue(nodes=2)
    run = queue.runner()
    denied = CommandAnswer(status=1, err="slurm_load_node: Access/permission denied")
    run.answers |= {"sinfo": lambda _: denied, "scontrol": lambda _: denied}
    asked = driver(tmp_path, run)
    assert asked.provision(1) == ["node1"]
    assert [machine.detail for machine in asked.machines()] == ["job 1; node unknown"]
    queue.jobs[1] = ("NODE_FAIL", "node1", queue.jobs[1][2])
    asked.evict("node1", Scope.CLUSTER, "gone")
    assert asked.provision(1) == ["node2"]
    (*_, last) = [command for command in run.asked if command[0] == "sbatch"]
    assert "--exclude=node1" in last
    assert asked.leaving() == []


@pytest.mark.parametrize(
    ("state", "reason", "counts"),
    [
        ("PENDING", "Resources", True),
        ("PENDING", "JobHeldUser", True),
        ("PENDING", "BadConstraints", False),
        ("REQUEUE_HOLD", "JobHoldMaxRequeue", False),
    ],
)
def test_request_that_slurm_holds_for_good_does_not_count(
    tmp_path: Path, state: str, reason: str, counts: bool
) -> None:
    """The pool would wait for it for ever: another takes its place. What a person holds is as they want it."""
    queue = Queue(nodes=0)
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(1)
    comment = queue.jobs[1][2]
    run.answers["squeue"] = lambda _: CommandAnswer(status=0, out=f"1|{state}||{reason}|{comment}\n")
    asked.provision(1)
    assert run.count("sbatch") == (1 if counts else 2)
    assert run.count("scancel") == (0 if counts else 1)


def test_groups_are_features_and_wait_apart(tmp_path: Path) -> None:
    """A queued request for one kind of node is none for another."""
    queue = Queue(nodes=0)
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(1, "h100")
    asked.provision(1)
    asked.provision(1, "h100")
    submitted = [command for command in run.asked if command[0] == "sbatch"]
    assert ["--constraint=h100" in command for command in submitted] == [True, False]


@pytest.mark.parametrize(
    "given", ["--exclude=bad[1-3] -C ib", "--exclude bad[1-3] -Cib", "-x bad[1-3] --constraint=ib"]
)
def test_what_a_site_s_options_exclude_stays_excluded(tmp_path: Path, given: str) -> None:
    """Of two such options sbatch heeds the last."""
    queue = Queue(nodes=1)
    run = queue.runner()
    asked = driver(tmp_path, run, options=f"--partition=train {given}")
    asked.provision(2)
    queue.jobs[1] = ("COMPLETED", "node1", queue.jobs[1][2])
    asked.evict("node1", Scope.JOB, "hang")
    asked.provision(1, "h100")
    (*_, last) = [command for command in run.asked if command[0] == "sbatch"]
    assert "--exclude=bad[1-3],node1" in last
    assert "--constraint=ib&h100" in last
    assert ["scontrol", "update", "JobId=2", "ExcNodeList=bad[1-3],node1"] in run.asked


def test_nodes_out_of_service_are_kept_off(tmp_path: Path) -> None:
    """Also from what was queued before; scope `job` drains nothing."""
    queue = Queue(nodes=1)
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(2)
    queue.jobs[1] = ("COMPLETED", "node1", queue.jobs[1][2])
    asked.evict("node1", Scope.JOB, "hang")
    asked.provision(2)
    told = [" ".join(command) for command in run.asked]
    assert "scontrol update JobId=2 ExcNodeList=node1" in told
    (*_, last) = [line for line in told if line.startswith("sbatch")]
    assert "--exclude=node1" in last
    assert not [line for line in told if "state=drain" in line]


@pytest.mark.parametrize(
    ("reason", "drained"),
    [("Not responding", True), ("Node unexpectedly rebooted", True), ("bad DIMM", False), ("none", False)],
)
def test_node_that_slurm_itself_set_down_is_drained_too(tmp_path: Path, reason: str, drained: bool) -> None:
    """With `ReturnToService` it would serve other jobs as soon as it answers; what a person set down stays as it is."""
    queue = Queue(nodes=1)
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(1)
    queue.jobs[1] = ("NODE_FAIL", "node1", queue.jobs[1][2])
    run.answers["sinfo"] = lambda _: CommandAnswer(status=0, out=f"node1|down*|{reason}\n")
    asked.evict("node1", Scope.CLUSTER, "gpt-1: gone")
    told = [" ".join(command) for command in run.asked]
    drain = "scontrol update nodename=node1 state=drain reason=holdfast: gpt-1: gone"
    assert (drain in told) is drained


def test_release_that_was_killed_is_taken_up_with_its_job(tmp_path: Path) -> None:
    """Slurm has the job and the record does not: a second job would wait for the first one's node for ever."""
    queue = Queue(nodes=1)
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(1)
    queue.jobs[1] = ("COMPLETED", "node1", queue.jobs[1][2])
    asked.evict("node1", Scope.JOB, "hang")
    queue.jobs[2] = ("CANCELLED", "node1", "holdfast node=node1#a")
    queue.jobs[3] = ("RUNNING", "node1", "holdfast node=node1#b")
    queue.jobs[4] = ("RUNNING", "node11", "holdfast node=node11#c")
    asked.release("node1")
    asked.release("node1")
    assert run.count("sbatch") == 1, "the first allocation"
    (seen,) = [machine for machine in asked.machines() if machine.name == "node1"]
    assert seen.alive
    assert seen.detail.startswith("job 3;")


def test_allocation_that_slurm_took_away_does_not_drain_its_node(tmp_path: Path) -> None:
    """A time limit is no fault of the node, nor is an operator's scancel."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(3)
    for job, state in ((1, "TIMEOUT"), (2, "NODE_FAIL"), (3, "CANCELLED")):
        queue.jobs[job] = (state, f"node{job}", queue.jobs[job][2])
        asked.evict(f"node{job}", Scope.CLUSTER, "gone")
    told = [" ".join(command) for command in run.asked]
    assert [line for line in told if "state=drain" in line] == [
        "scontrol update nodename=node2 state=drain reason=holdfast: gone"
    ]


@pytest.mark.parametrize(
    ("reason", "ends_as", "drained"),
    [("None", "PREEMPTED", False), ("None", "NODE_FAIL", True), ("TimeLimit", "", False), ("None", "", True)],
)
def test_what_ended_an_allocation_shows_when_it_has_ended(
    tmp_path: Path, reason: str, ends_as: str, drained: bool
) -> None:
    """While the epilog runs squeue says COMPLETING for all; an epilog without end is not waited for."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run, kill_s=0.2)
    asked.provision(1)
    comment, looks = queue.jobs[1][2], [0]

    def squeue(_: Sequence[str]) -> CommandAnswer:
        looks[0] += 1
        state = ends_as if ends_as and looks[0] > 3 else "COMPLETING"
        return CommandAnswer(status=0, out=f"1|{state}|node1|{reason}|{comment}\n")

    run.answers["squeue"] = squeue
    with suppress(UnavailableError):
        asked.evict("node1", Scope.CLUSTER, "its agent is gone")
    assert any("state=drain" in word for command in run.asked for word in command) is drained


def of_ended(state: str, folder: Path) -> tuple[Scripted, SlurmDriver]:
    """A driver whose only machine, on node1, has a job that ended in ``state``; and what it asks Slurm by."""
    queue = Queue()
    run = queue.runner()
    asked = driver(folder, run)
    asked.provision(1)
    queue.jobs[1] = (state, "node1", queue.jobs[1][2])
    return run, asked


@pytest.mark.parametrize("state", ["drained", "down", "fail"])
def test_what_a_person_took_out_is_neither_resumed_nor_restarted(tmp_path: Path, state: str) -> None:
    """It may be under repair, or kept as it is for a look: their reason would be replaced by ours, and then lifted."""
    run, asked = of_ended("CANCELLED", tmp_path)
    run.answers["sinfo"] = lambda _: CommandAnswer(status=0, out=f"node1|{state}|bad DIMM\n")
    asked.evict("node1", Scope.CLUSTER, "gone")
    for act in (lambda: asked.release("node1"), lambda: asked.reboot("node1", "Xid 79", "", 0.01)):
        with pytest.raises(RefusedError, match=r"not by Holdfast \(bad DIMM\)"):
            act()
    assert not [command for command in run.asked if "reboot" in command or "state=resume" in command]


def test_what_slurm_drained_for_processes_that_stay_is_restarted(tmp_path: Path) -> None:
    """That is what ends them; only its release waits for who may lift a drain that is not ours."""
    run, asked = of_ended("CANCELLED", tmp_path)
    run.answers["sinfo"] = lambda _: CommandAnswer(status=0, out="node1|drained|Kill task failed\n")
    asked.evict("node1", Scope.CLUSTER, "gone")
    with pytest.raises(UnavailableError, match="not seen to restart"):
        asked.reboot("node1", "a process stays", "", 0.01)
    assert any(command[:2] == ["scontrol", "reboot"] for command in run.asked)
    with pytest.raises(RefusedError, match="Kill task failed"):
        asked.release("node1")


@pytest.mark.parametrize("reason", ["Not responding", "holdfast: gpt-1: gone", "reboot timed out"])
def test_what_slurm_or_we_set_down_is_resumed(tmp_path: Path, reason: str) -> None:
    """With the release of the machine."""
    run, asked = of_ended("NODE_FAIL", tmp_path)
    run.answers["sinfo"] = lambda _: CommandAnswer(status=0, out=f"node1|down*|{reason}\n")
    asked.evict("node1", Scope.JOB, "gone")
    asked.release("node1")
    assert ["scontrol", "update", "nodename=node1", "state=resume"] in run.asked


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED"])
def test_allocation_that_is_suspended_does_not_drain_its_node(tmp_path: Path, state: str) -> None:
    """By `PreemptMode=SUSPEND` or a person: all of the machine is silent, the node is well, and others use it."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(1)
    queue.jobs[1] = (state, "node1", queue.jobs[1][2])
    with suppress(UnavailableError):
        asked.evict("node1", Scope.CLUSTER, "its agent is gone")
    assert ["scancel", "1"] in run.asked
    assert not any("state=drain" in word for command in run.asked for word in command)


def test_job_that_was_requeued_onto_another_node_is_that_machine(tmp_path: Path) -> None:
    """As with `--requeue` among a site's options: what is done to the node that it left does not end it there."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    assert asked.provision(1) == ["node1"]
    queue.jobs[1] = ("RUNNING", "node2", queue.jobs[1][2])
    seen = {machine.name: machine for machine in asked.machines()}
    assert (seen["node1"].alive, seen["node2"].alive) == (False, True)
    assert seen["node1"].detail.startswith("job 1 is gone")
    asked.evict("node1", Scope.JOB, "its agent is gone")
    asked.retire("node1")
    assert run.count("scancel") == 0
    assert [machine.name for machine in asked.machines() if machine.alive] == ["node2"]


def test_a_node_that_was_allocated_again_is_not_given_back_for_what_it_was(tmp_path: Path) -> None:
    """Who retires it may have slept for an hour: by now the node's name is that of a machine that trains."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    assert asked.provision(1) == ["node1"]
    with pytest.raises(AnewError, match="node1"):
        asked.retire("node1", "life@7")
    assert run.count("scancel") == 0
    assert [machine.name for machine in asked.machines() if machine.alive] == ["node1"]


def test_a_node_that_was_allocated_again_is_not_released_for_what_it_was(tmp_path: Path) -> None:
    """It was evicted again since; the second eviction stays."""
    queue = Queue(nodes=1)
    run = queue.runner()
    asked = driver(tmp_path, run)
    assert asked.provision(1) == ["node1"]
    asked.release("node1", "life@7")
    queue.jobs[1] = ("COMPLETED", "node1", queue.jobs[1][2])
    asked.evict("node1", Scope.CLUSTER, "Xid 79", "life@1")
    with pytest.raises(AnewError, match="node1"):
        asked.release("node1", "life@7")
    assert run.count("sbatch") == 1, "the first allocation"
    assert not any("state=resume" in " ".join(command) for command in run.asked)


def test_node_that_left_the_configuration_is_lost_and_the_others_stay(tmp_path: Path) -> None:
    """It is listed as dead and says why; it is evicted, replaced and retired without a word to Slurm about it."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    assert asked.provision(2) == ["node1", "node2"]
    queue.forget("node2")

    seen = {machine.name: machine for machine in asked.machines()}
    assert seen["node1"].alive
    assert not seen["node2"].alive
    assert "job 2 node_fail; Slurm knows no node node2 any more" in seen["node2"].detail
    asked.evict("node2", Scope.CLUSTER, "gpt-1: gone")
    with pytest.raises(UnknownError, match=r"node2: Slurm knows no node of that name any more"):
        asked.release("node2")
    assert asked.provision(1) == ["node3"], "not refused for the sake of --exclude"
    seen = {machine.name: machine for machine in asked.machines()}
    assert seen["node2"].detail.startswith("evicted (cluster): gpt-1: gone; Slurm knows no node node2")
    asked.retire("node2")
    assert [machine.name for machine in asked.machines() if machine.alive] == ["node1", "node3"]


@pytest.mark.parametrize("jobs_are_known", [True, False])
def test_site_whose_nodes_all_left_has_an_inventory(tmp_path: Path, jobs_are_known: bool) -> None:
    """Also where slurmctld forgot the jobs with its state."""
    queue = Queue()
    asked = driver(tmp_path, queue.runner())
    names = asked.provision(2)
    queue.forget(*names)
    if not jobs_are_known:
        queue.jobs.clear()
    seen = asked.machines()
    assert [(machine.name, machine.alive) for machine in seen] == [("node1", False), ("node2", False)]
    assert all("taken out of slurm.conf?" in machine.detail for machine in seen)


def test_a_node_is_set_down_last_and_keeps_the_word_of_others(tmp_path: Path) -> None:
    """A job that neither its script nor Slurm ends: the node is given up, with who drained it first before us."""
    queue = Queue()
    run = queue.runner()
    run.answers["sinfo"] = lambda _: CommandAnswer(status=0, out="node1|draining|bad DIMM\n")
    run.answers["scontrol"] = lambda command: (
        CommandAnswer(status=0, out=f"NodeName=node1 NodeAddr=127.0.0.1 Port={port}")
        if "show" in command
        else FINE
    )
    asked = driver(tmp_path, run)
    asked.provision(1)
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        port = slurmd.getsockname()[1]
        with pytest.raises(UnavailableError, match="job 1 did not end"):
            asked.evict("node1", Scope.CLUSTER, "gpt-1: gone")
    acts = [" ".join(command) for command in run.asked if command[0] in ("scancel", "scontrol")]
    assert acts[-3:] == [
        "scancel --batch --signal=USR1 1",
        "scancel 1",
        "scontrol update nodename=node1 state=down reason=bad DIMM; holdfast: gpt-1: gone",
    ]


def at_ports(**ports: int) -> Callable[[Sequence[str]], CommandAnswer]:
    """scontrol that shows each node's slurmd at a port of this host."""

    def scontrol(command: Sequence[str]) -> CommandAnswer:
        if "show" not in command:
            return FINE
        return CommandAnswer(status=0, out=f"NodeName=x NodeAddr=127.0.0.1 Port={ports[command[-1]]}")

    return scontrol


def closed_port() -> int:
    """Port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_no_node_is_given_up_where_a_firewall_keeps_us_from_all(tmp_path: Path) -> None:
    """Compute nodes of many sites let nothing in from where the control plane runs: they are no dead nodes."""
    queue, nowhere = Queue(nodes=3), closed_port()
    run = queue.runner()
    run.answers["scontrol"] = at_ports(node1=nowhere, node2=nowhere, node3=nowhere)
    asked = driver(tmp_path, run)
    asked.provision(2)
    for act in (lambda: asked.evict("node1", Scope.JOB, "hang"), lambda: asked.retire("node2")):
        run.asked.clear()
        with pytest.raises(UnavailableError, match="did not end"):
            act()
        acts = [" ".join(command) for command in run.asked if command[0] == "scancel" or "update" in command]
        assert acts[0].startswith("scancel --batch --signal=USR1")
    assert not [line for line in acts if "state=down" in line], "a node that is only given back"


@pytest.mark.parametrize("ours", [2, 1])
def test_a_node_that_alone_does_not_answer_is_set_down_first(tmp_path: Path, ours: int) -> None:
    """Another machine of ours answers, or another node of the cluster."""
    queue = Queue(nodes=2)
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(ours)
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        run.answers["scontrol"] = at_ports(node1=closed_port(), node2=slurmd.getsockname()[1])
        with pytest.raises(UnavailableError, match="did not end"):
            asked.evict("node1", Scope.JOB, "its agent is gone")
    acts = [" ".join(command) for command in run.asked if command[0] == "scancel" or "update" in command]
    assert acts == [
        "scontrol update nodename=node1 state=down reason=holdfast: its agent is gone",
        "scancel 1",
    ]


def test_one_job_is_waited_for_without_a_list_of_all(tmp_path: Path) -> None:
    """slurmctld has a hundred thousand jobs of others; of one that it forgot it says that there is none."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    asked.provision(1)
    run.asked.clear()
    one: list[Sequence[str]] = []

    def squeue(command: Sequence[str]) -> CommandAnswer:
        if "--jobs=1" not in command:
            return queue.squeue(command)
        one.append(command)
        if len(one) < 3:
            return queue.squeue(command)
        return CommandAnswer(status=1, err="slurm_load_jobs error: Invalid job id specified")

    run.answers["squeue"] = squeue
    asked.evict("node1", Scope.JOB, "hang")
    assert run.count("squeue") - len(one) <= 1


def test_slurmd_is_looked_for_at_the_port_of_the_cluster(tmp_path: Path) -> None:
    """With a `SlurmdPort` of its own no node shows a port: at 6818 all would look dead, and be set down first."""
    queue = Queue()
    run = queue.runner()
    shown = "NodeName=node1 NodeAddr=127.0.0.1 State=MIXED Reason=holdfast: gpt-1: NodeAddr=nowhere"

    def scontrol(command: Sequence[str]) -> CommandAnswer:
        if "config" in command:
            return CommandAnswer(status=0, out=f"SlurmctldPort = 6817\nSlurmdPort              = {port}\n")
        return CommandAnswer(status=0, out=shown) if "show" in command else FINE

    run.answers["scontrol"] = scontrol
    asked = driver(tmp_path, run)
    asked.provision(1)
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        port = slurmd.getsockname()[1]
        with pytest.raises(UnavailableError, match="job 1 did not end"):
            asked.evict("node1", Scope.JOB, "hang")
    acts = [" ".join(command) for command in run.asked if command[0] == "scancel" or "update" in command]
    assert acts[:2] == ["scancel --batch --signal=USR1 1", "scancel 1"]


def test_nodes_that_others_drain_are_told_with_their_reason(tmp_path: Path) -> None:
    """Not those that we drained, nor evicted ones, nor those that are well."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    assert asked.leaving() == []
    asked.provision(4)
    states = (
        "node1|failing|rack 4 moves\nnode2|drained|holdfast: gpt-1: gone\nnode3|mixed|none\nnode4|drng|\n"
    )
    run.answers["sinfo"] = lambda _: CommandAnswer(status=0, out=states.replace("drng", "draining@"))
    assert isinstance(asked, Drains)
    assert [(each.name, each.reason) for each in asked.leaving()] == [
        ("node1", "Slurm: rack 4 moves"),
        ("node4", "Slurm: no reason given"),
    ]


def test_job_around_us_does_not_shine_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane may itself run in a Slurm job, and the driver in a flow run."""
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "PREFECT__FLOW_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/lab.conf")
    for name in ("SLURM_CONF_SERVER", "SLURM_JWT"):
        monkeypatch.setenv(name, "needed")
    run = Queue().runner()
    driver(tmp_path, run).provision(1)
    assert run.env["SLURM_CONF"] == "/etc/slurm/lab.conf"
    assert run.env["SLURM_CONF_SERVER"] == run.env["SLURM_JWT"] == "needed"
    assert run.env["HOLDFAST_HOME"] == str(tmp_path)
    assert run.env["HOLDFAST_PYTHON"] == sys.executable
    assert not {"SLURM_JOB_ID", "SLURM_NTASKS", "PREFECT__FLOW_RUN_ID"} & run.env.keys()


def test_what_a_user_has_set_for_squeue_hides_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is not listed counts as ended, and its machine as gone."""
    for name in ("SQUEUE_PARTITION", "SQUEUE_USERS", "SINFO_PARTITION"):
        monkeypatch.setenv(name, "debug")
    monkeypatch.setenv("SBATCH_ACCOUNT", "team")
    run = Queue().runner()
    driver(tmp_path, run).provision(1)
    assert run.env["SBATCH_ACCOUNT"] == "team"
    assert not [name for name in run.env if name.startswith(("SQUEUE_", "SINFO_"))]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"options": "--x '"}, "HOLDFAST_SLURM_OPTIONS"),
        (
            {"options": "--partition=train -J mine"},
            "HOLDFAST_SLURM_OPTIONS.*--job-name.*HOLDFAST_SLURM_JOB_NAME",
        ),
        ({"options": "--array=0-3"}, "--array"),
        ({"options": "--clusters other"}, "--clusters"),
        ({"script": "/nowhere"}, "HOLDFAST_SLURM_SCRIPT"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    """At once, not when a machine dies."""
    with pytest.raises(SettingsError, match=named):
        driver(tmp_path, Scripted(), **settings)


def test_settings_name_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`HOLDFAST_DRIVER=slurm`, with options for sbatch from the environment or what `holdfast up` kept."""
    made = from_settings(Settings(home=tmp_path, driver="slurm"))
    assert isinstance(made, SlurmDriver)
    (tmp_path / "settings.env").write_text("HOLDFAST_SLURM_OPTIONS=--x '\n")
    with pytest.raises(SettingsError, match=r"HOLDFAST_SLURM_OPTIONS = \"--x '\": No closing quotation"):
        from_settings(Settings(home=tmp_path, driver="slurm"))
    monkeypatch.setenv("HOLDFAST_SLURM_OPTIONS", "--partition=train")
    from_settings(Settings(home=tmp_path, driver="slurm"))


def test_marks_of_sinfo_are_read() -> None:
    """https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES"""
    text = "node1|idle|none\nnode2|down*|Not responding\nnode3|drained|holdfast: a | b\nnode4|mixed-|none\n"
    nodes = listing.nodes(text)
    assert [node.usable for node in nodes.values()] == [True, False, False, True]
    assert [node.responds for node in nodes.values()] == [True, False, True, True]
    assert nodes["node3"].reason == "holdfast: a | b"


def test_lines_that_are_no_jobs_are_skipped() -> None:
    """As warnings that some sites' wrappers print."""
    text = "squeue: warning\n12|COMPLETING|node1|None|holdfast group=#1\n\n11|PENDING||Priority|x|y\n"
    found = listing.allocations(text)
    assert [(job.id, job.queued, job.over, job.comment) for job in found] == [
        (11, True, False, "x|y"),
        (12, False, False, "holdfast group=#1"),
    ]


class Rebooting(Queue):
    """A cluster whose node boots once it was asked to, and is away for one look."""

    def __init__(self, *, boots: bool = True) -> None:
        super().__init__()
        self.boots, self.asked, self.looks = boots, False, 0

    def scontrol(self, command: Sequence[str]) -> CommandAnswer:
        """As 22.05 shows a node: with when it booted, and as rebooting while it does."""
        if command[1] == "reboot":
            self.asked = True
            return FINE
        if command[1] == "--oneliner":
            self.looks += self.asked
            away = self.asked and self.looks == 1
            # Reckoned from the uptime each time: a second off from itself.
            before = f"2026-11-01T08:00:0{self.looks % 3}"
            boot = "2026-11-24T12:00:00" if self.asked and self.boots and not away else before
            state = "DOWN+REBOOT_ISSUED" if away else "IDLE+DRAIN"
            return CommandAnswer(status=0, out=f"NodeName=node1 State={state} BootTime={boot} Port=6818\n")
        return FINE


def rebooting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, boots: bool
) -> tuple[SlurmDriver, Scripted]:
    monkeypatch.setattr("holdfast.drivers.slurm.driver.REBOOT_POLL_S", 0.01)
    queue = Rebooting(boots=boots)
    run = Scripted(sbatch=queue.sbatch, squeue=queue.squeue, sinfo=queue.sinfo, scontrol=queue.scontrol)
    driver = SlurmDriver(Settings(home=tmp_path), run=run)
    assert driver.provision(1) == ["node1"]
    return driver, run


def test_a_restart_counts_when_another_boot_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of a machine that is out of service, and it stays down; the reason carries our mark."""
    driver, run = rebooting(tmp_path, monkeypatch, boots=True)
    with pytest.raises(RefusedError, match="in service"):
        driver.reboot("node1", "x", "", 60)
    monkeypatch.setattr(driver, "_end", lambda *_: None)
    driver.evict("node1", Scope.CLUSTER, "broken")
    with pytest.raises(HoldfastError, match="was restarted"):
        driver.reboot("node1", "x", "a@7", 60)
    assert "booted at 2026-11-24T12:00:00, before at 2026-11-01" in driver.reboot("node1", "Xid 79", "", 60)
    (asked,) = [command for command in run.asked if command[:2] == ["scontrol", "reboot"]]
    assert asked[2:] == ["ASAP", "nextstate=DOWN", "reason=holdfast: Xid 79", "node1"]


@pytest.mark.parametrize(
    ("now", "before", "another"),
    [
        ("", "2026-11-01T08:00:00", False),
        ("", "", False),
        ("2026-11-01T08:00:00", "", True),
        ("2026-11-01T08:00:01", "2026-11-01T08:00:00", False),
        ("2026-11-01T07:59:59", "2026-11-01T08:00:00", False),
        ("2026-11-01T08:09:00", "2026-11-01T08:00:00", True),
        ("Sun 8:00", "Sat 8:00", True),
        ("Sun 8:00", "Sun 8:00", False),
    ],
)
def test_one_boot_is_seconds_off_from_itself(now: str, before: str, another: bool) -> None:
    """slurmctld reckons it from the uptime, again with every registration."""
    assert SlurmNodes.is_another_boot(now, before) is another


def test_a_node_that_does_not_restart_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm took the request, and nothing happened."""
    driver, _ = rebooting(tmp_path, monkeypatch, boots=False)
    monkeypatch.setattr(driver, "_end", lambda *_: None)
    driver.evict("node1", Scope.CLUSTER, "broken")
    with pytest.raises(UnavailableError, match="not seen to restart"):
        driver.reboot("node1", "x", "", 0.1)
