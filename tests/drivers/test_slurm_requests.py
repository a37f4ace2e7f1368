"""Requests for nodes: made once, counted while they wait, and only for nodes that may be had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.drivers.slurm.commands import CommandAnswer
from holdfast.models.machine import Scope
from tests.drivers.scripted_slurm import Queue, driver


def test_lost_answer_of_sbatch_makes_no_second_allocation(tmp_path: Path) -> None:
    """A job whose submission was taken without an answer is found by its comment."""
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
    """Some sites' filters greet the user at submission; without an id the job is found by its comment."""
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
    commands = [" ".join(command) for command in run.asked]
    assert "scontrol update JobId=2 ExcNodeList=node1" in commands
    (*_, last) = [line for line in commands if line.startswith("sbatch")]
    assert "--exclude=node1" in last
    assert not [line for line in commands if "state=drain" in line]
