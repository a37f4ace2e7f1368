"""Nodes of a Slurm cluster: drained, given back, taken out by others, gone, behind firewalls."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.drivers.base import Drains
from holdfast.drivers.slurm import SlurmDriver
from holdfast.drivers.slurm.commands import CommandAnswer
from holdfast.errors import (
    RefusedError,
    ReplacedUnitError,
    UnavailableError,
    UnknownError,
)
from holdfast.models.machine import Scope
from tests.drivers.scripted_slurm import FINE, Queue, Scripted, driver


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
    commands = [" ".join(command) for command in run.asked]
    drain = "scontrol update nodename=node1 state=drain reason=holdfast: gpt-1: gone"
    assert (drain in commands) is drained


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
    commands = [" ".join(command) for command in run.asked]
    assert [line for line in commands if "state=drain" in line] == [
        "scontrol update nodename=node2 state=drain reason=holdfast: gone"
    ]


@pytest.mark.parametrize(
    ("reason", "ends_as", "drained"),
    [("None", "PREEMPTED", False), ("None", "NODE_FAIL", True), ("TimeLimit", "", False), ("None", "", True)],
)
def test_what_ended_an_allocation_shows_when_it_has_ended(
    tmp_path: Path, reason: str, ends_as: str, drained: bool
) -> None:
    """While the epilog runs squeue shows COMPLETING for all; an epilog without end is not waited for."""
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
    """The process that retires it may have slept for an hour: by now a machine that trains has the node's name."""
    queue = Queue()
    run = queue.runner()
    asked = driver(tmp_path, run)
    assert asked.provision(1) == ["node1"]
    with pytest.raises(ReplacedUnitError, match="node1"):
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
    with pytest.raises(ReplacedUnitError, match="node1"):
        asked.release("node1", "life@7")
    assert run.count("sbatch") == 1, "the first allocation"
    assert not any("state=resume" in " ".join(command) for command in run.asked)


def test_node_that_left_the_configuration_is_lost_and_the_others_stay(tmp_path: Path) -> None:
    """It is listed as dead, with the reason; it is evicted, replaced and retired without a call to Slurm."""
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
    """slurmctld has a hundred thousand jobs of others; for one that it forgot it answers that there is none."""
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


def test_nodes_that_others_drain_are_reported_with_their_reason(tmp_path: Path) -> None:
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
