"""The playbook worker with real processes, on a real Prefect server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.deployments.worker_kit import Api, Worker, gone, prefect_server, worker
from tests.e2e.waiting import free_ports, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FLOWS = "tests.deployments.sample_flows"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield Api(url)


@pytest.fixture(scope="module")
def shared(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that no test harms."""
    with worker(tmp_path_factory.mktemp("home"), api.url, "shared") as started:
        started.wait_ready()
        yield started


@pytest.fixture(scope="module")
def second(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Another one."""
    with worker(tmp_path_factory.mktemp("home"), api.url, "second") as started:
        started.wait_ready()
        yield started


@pytest.fixture
def own(api: Api, tmp_path: Path) -> Iterator[Worker]:
    """A worker to be killed; its pool is named after its home."""
    with worker(tmp_path / "home", api.url, pool_of(tmp_path)) as started:
        started.wait_ready()
        yield started


def pool_of(tmp_path: Path) -> str:
    return f"pool-{tmp_path.name}"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def completed(api: Api, run: str) -> None:
    wait_for("completion", lambda: api.state(run) == "Completed")


def begun(api: Api, at: Worker, tmp_path: Path, pool: str = "") -> tuple[str, int]:
    """A slow run under way: its id and process."""
    deployment = api.deploy(pool or pool_of(tmp_path), "sample-slow", f"{FLOWS}:slow")
    run = api.create_run(deployment, path=str(tmp_path / "out"))
    at.poke(run)
    wait_for("the run's first line", lambda: lines(tmp_path / "out"))
    return run, wait_for("its process id", lambda: api.pid(run))


def test_poked_run_starts_without_waiting_for_the_poll(api: Api, shared: Worker, tmp_path: Path) -> None:
    """A poke starts the run in less than a poll interval."""
    deployment = api.deploy("shared", "sample-quick", f"{FLOWS}:quick")
    run = api.create_run(deployment, path=str(tmp_path / "out"))
    shared.poke(run)
    completed(api, run)
    assert len(lines(tmp_path / "out")) == 1


def test_run_that_was_not_announced_is_found_by_the_poll(api: Api, shared: Worker, tmp_path: Path) -> None:
    """Runs made in the UI, by the CLI or by automations run as well."""
    deployment = api.deploy("shared", "sample-sync", f"{FLOWS}:plain")
    run = api.create_run(deployment, path=str(tmp_path / "out"))
    completed(api, run)
    assert len(lines(tmp_path / "out")) == 1


@pytest.mark.thorough
def test_run_poked_many_times_at_two_workers_runs_once(
    api: Api, shared: Worker, second: Worker, tmp_path: Path
) -> None:
    """The server grants the claim once, to whichever worker asks first."""
    deployment = api.deploy("shared", "sample-quick", f"{FLOWS}:quick")
    runs = [api.create_run(deployment, path=str(tmp_path / f"out{number}")) for number in range(5)]
    for run in runs:
        for each in (shared, second, shared, second):
            each.poke(run)
    for run in runs:
        completed(api, run)
    wait_for("idle", lambda: shared.status()["running"] == second.status()["running"] == 0)
    written = [lines(tmp_path / f"out{number}") for number in range(5)]
    assert [len(each) for each in written] == [1] * 5, written


def test_run_that_is_over_is_not_run_again(api: Api, shared: Worker, second: Worker, tmp_path: Path) -> None:
    """A poke that comes late, at either worker, leaves the run and its result as they are."""
    completing = api.deploy("shared", "sample-quick", f"{FLOWS}:quick")
    failing = api.deploy("shared", "sample-failing", f"{FLOWS}:failing")
    good = api.create_run(completing, path=str(tmp_path / "out"))
    bad = api.create_run(failing)
    for run, end in ((good, "Completed"), (bad, "Failed")):
        shared.poke(run)
        wait_for(f"the run is {end}", lambda run=run, end=end: api.state(run) == end)
    wait_for("idle", lambda: shared.status()["running"] == 0)
    for run in (good, bad):
        for each in (second, shared):
            each.poke(run)
            wait_for("the refusal", lambda run=run, each=each: f"flow run {run} is over" in each.log())
    assert len(lines(tmp_path / "out")) == 1
    assert (api.state(good), api.state(bad)) == ("Completed", "Failed")
    assert "on purpose" in api.message(bad)


def test_run_that_is_retried_runs_again(api: Api, shared: Worker, tmp_path: Path) -> None:
    """Retry in the UI schedules a run that has ended."""
    deployment = api.deploy("shared", "sample-quick", f"{FLOWS}:quick")
    run = api.create_run(deployment, path=str(tmp_path / "out"))
    shared.poke(run)
    completed(api, run)
    api.retry(run)
    wait_for("a second time", lambda: len(lines(tmp_path / "out")) == 2)
    completed(api, run)


def test_all_log_lines_arrive(api: Api, shared: Worker) -> None:
    """A process that ends right after its last line loses none."""
    deployment = api.deploy("shared", "sample-talkative", f"{FLOWS}:talkative")
    run = api.create_run(deployment, lines=300)
    shared.poke(run)
    completed(api, run)
    wanted = {f"line {number}" for number in range(300)}
    wait_for("all lines", lambda: wanted <= set(api.logs(run)))


def test_failing_flow_is_failed_not_crashed(api: Api, shared: Worker) -> None:
    """An exception of the flow is the flow's own failure."""
    deployment = api.deploy("shared", "sample-failing", f"{FLOWS}:failing")
    run = api.create_run(deployment)
    shared.poke(run)
    wait_for("the end", lambda: api.state(run) == "Failed")
    wait_for("idle", lambda: shared.status()["running"] == 0)
    assert api.state(run) == "Failed"
    assert "on purpose" in api.message(run)


def test_file_entrypoint_is_refused_with_a_reason(api: Api, shared: Worker) -> None:
    """Only installed modules are run."""
    deployment = api.deploy("shared", "sample-file", "flows/job_crash.py:job_crash")
    run = api.create_run(deployment)
    shared.poke(run)
    wait_for("the end", lambda: api.state(run) == "Crashed")
    assert "module entrypoints" in api.message(run)


def test_unknown_module_crashes_the_run_with_its_error(api: Api, shared: Worker) -> None:
    """The reason is in the run's log."""
    deployment = api.deploy("shared", "sample-nothing", "tests.no_such_module:flow")
    run = api.create_run(deployment)
    shared.poke(run)
    wait_for("the end", lambda: api.state(run) == "Crashed")
    wait_for("the reason", lambda: any("no_such_module" in line for line in api.logs(run)))


def test_nonsense_on_the_socket_is_answered(shared: Worker) -> None:
    """Neither words nor ids of no run disturb the worker."""
    assert shared.say("hello").startswith("error:")
    assert shared.say(str(uuid.uuid4())) == "ok"
    assert shared.status()["connected"]


def test_cancelled_run_ends_cancelled_and_its_process_is_gone(
    api: Api, second: Worker, tmp_path: Path
) -> None:
    """Cancelling in the UI stops a playbook in the middle of a step."""
    run, pid = begun(api, second, tmp_path, "second")
    process = psutil.Process(pid)
    api.cancel(run)
    wait_for("Cancelled", lambda: api.state(run) == "Cancelled")
    wait_for("process gone", lambda: gone([process]))
    wait_for("idle", lambda: second.status()["running"] == 0)
    assert api.state(run) == "Cancelled"
    assert len(lines(tmp_path / "out")) == 1


@pytest.mark.thorough
def test_stopped_process_of_a_cancelled_run_is_killed(api: Api, second: Worker, tmp_path: Path) -> None:
    """A process that cannot react is killed after the grace period, and the run still ends Cancelled."""
    run, pid = begun(api, second, tmp_path, "second")
    os.kill(pid, signal.SIGSTOP)
    api.cancel(run)
    wait_for("Cancelled", lambda: api.state(run) == "Cancelled")
    assert not psutil.pid_exists(pid)


def test_killed_run_process_is_reported_crashed(api: Api, second: Worker, tmp_path: Path) -> None:
    """SIGKILL of the process: the worker reports Crashed, and why."""
    run, pid = begun(api, second, tmp_path, "second")
    os.kill(pid, signal.SIGKILL)
    wait_for("Crashed", lambda: api.state(run) == "Crashed")
    assert "SIGKILL" in api.message(run)


@pytest.mark.thorough
def test_terminated_worker_leaves_no_run_running(api: Api, own: Worker, tmp_path: Path) -> None:
    """SIGTERM of the worker: its runs report themselves Crashed, and nothing of it is left."""
    run, _ = begun(api, own, tmp_path)
    family = own.family()
    own.process.terminate()
    assert own.process.wait(60) == 0
    assert api.state(run) == "Crashed"
    wait_for("processes gone", lambda: gone(family))
    assert not own.socket.exists()


@pytest.mark.thorough
def test_killed_worker_leaves_no_run_running(api: Api, own: Worker, tmp_path: Path) -> None:
    """SIGKILL of the worker: the run notices, reports itself Crashed and ends; so does the fork server."""
    run, _ = begun(api, own, tmp_path)
    family = own.family()
    own.process.kill()
    wait_for("Crashed", lambda: api.state(run) == "Crashed")
    wait_for("processes gone", lambda: gone(family))


@pytest.mark.thorough
def test_run_that_died_with_its_worker_is_reported_by_the_next(api: Api, own: Worker, tmp_path: Path) -> None:
    """Else it stays Running for ever, and holds a slot of its deployment's concurrency limit."""
    run, pid = begun(api, own, tmp_path)
    wait_for("its label", lambda: "prefect.worker.name" in api.ask("GET", f"/flow_runs/{run}")["labels"])
    os.kill(own.process.pid, signal.SIGSTOP)  # so that it cannot report
    os.kill(pid, signal.SIGKILL)
    own.process.kill()
    own.process.wait()
    assert api.state(run) == "Running"
    with worker(own.home, api.url, pool_of(tmp_path)):
        wait_for("Crashed", lambda: api.state(run) == "Crashed")
    assert "its worker" in api.message(run)


@pytest.mark.thorough
def test_restarted_worker_replaces_the_stale_socket(api: Api, own: Worker, tmp_path: Path) -> None:
    """A killed worker leaves its socket behind; the next one takes over."""
    own.process.kill()
    own.process.wait()
    assert own.socket.exists()
    with worker(own.home, api.url, pool_of(tmp_path)) as successor:
        successor.wait_ready()


@pytest.mark.thorough
def test_dead_warm_process_is_replaced(own: Worker) -> None:
    """Something kills a process while it waits; the next poll makes a new one."""
    # Forked processes keep the command line of the fork server, whose only children they are.
    server = next(each for each in own.family() if each.children())
    before = server.children()
    for each in before:
        each.kill()
    wait_for(
        "a new one", lambda: any(e not in before for e in server.children()) and own.status()["warm"] == 1
    )


@pytest.mark.thorough
def test_worker_waits_for_an_api_that_is_not_there_yet(api: Api, tmp_path: Path) -> None:
    """Started before the server, it retries instead of dying, and then works."""
    port = free_ports(1)
    target = api.url.removeprefix("http://").removesuffix("/api")
    with worker(tmp_path / "home", f"http://127.0.0.1:{port}/api", pool_of(tmp_path)) as early:
        wait_for("its socket", lambda: early.say("status"))
        time.sleep(3)
        assert early.process.poll() is None
        assert not early.status()["connected"]
        forwarder = subprocess.Popen([sys.executable, "-c", _FORWARD, str(port), *target.split(":")])
        try:
            early.wait_ready()
        finally:
            forwarder.kill()
            forwarder.wait()


_FORWARD = """
import socket, sys, threading
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    b.close()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    here, _ = listener.accept()
    there = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    threading.Thread(target=pump, args=(here, there), daemon=True).start()
    threading.Thread(target=pump, args=(there, here), daemon=True).start()
"""
