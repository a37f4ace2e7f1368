"""Two gateways over one PostgreSQL, agents that know both: the one that leads is killed, and recovery goes on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdfast import envfile, secret
from holdfast.deployments.local import control
from holdfast.models.agent import AgentState, RankPhase
from holdfast.models.alert import Incident, IncidentClass
from holdfast.models.job import Job
from holdfast.paths import log_dir
from holdfast.settings import Settings
from tests.e2e.site import POLICY, Site
from tests.e2e.waiting import free_ports, wait_for
from tests.storage import servers

MACHINES = 3


class Pair:
    """A site whose two gateways are processes of this test; everything else of it is as ever."""

    def __init__(self, home: Path, database: str) -> None:
        home.mkdir()
        (home / "policy.yaml").write_text(POLICY)
        first = free_ports(4)
        self.ports = (first, first + 3)
        self.urls = tuple(f"http://127.0.0.1:{port}" for port in self.ports)
        self.settings = Settings(
            home=home,
            port=first,
            policy_file=home / "policy.yaml",
            database_url=database,
            gateway_url=",".join(self.urls),
        )
        self.headers = {"Authorization": f"Bearer {secret.create(self.settings.secret_path)}"}
        secret.create_prefect_auth(self.settings)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.site: Site

    def start(self, url: str) -> None:
        """Start that gateway."""
        elsewhere = {
            "HOLDFAST_PORT": str(self.ports[self.urls.index(url)]),
            "HOLDFAST_PREFECT_API_URL": self.settings.prefect_api,
            "HOLDFAST_PREFECT_AUTH_FILE": str(self.settings.prefect_auth_path),
            "HOLDFAST_S3_ENDPOINT": self.settings.s3,
        }
        command = [
            *(sys.executable, "-P", "-m", "holdfast.deployments.gateway"),
            *("--home", str(self.settings.home)),
        ]
        log_dir(self.settings.home).mkdir(parents=True, exist_ok=True)
        with (log_dir(self.settings.home) / "gateway.log").open("ab") as log:
            self.processes[url] = subprocess.Popen(
                command,
                env=os.environ | envfile.chosen(self.settings) | elsewhere,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, url: str) -> None:
        """Until that gateway answers."""
        wait_for(f"{url} answers", lambda: self._answers(url, "/healthz"))

    def stop(self) -> None:
        """Both."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def leader(self) -> str:
        """The one that leads; there is never a second."""
        leading = [url for url in self.urls if self._answers(url, "/readyz")]
        assert len(leading) < 2
        return leading[0] if leading else ""

    def ask_leader(self) -> str:
        """From now on the site's calls go to the one that leads, once one does."""
        url = wait_for("one leads", self.leader)
        self.site.http = httpx.Client(base_url=url, headers=self.headers, timeout=60)
        return url

    def kill_leader(self) -> str:
        """SIGKILL; returns the one that is left."""
        (dead,) = [url for url in self.urls if url == self.leader()]
        self.processes[dead].kill()
        self.processes[dead].wait()
        (left,) = [url for url in self.urls if url != dead]
        return left

    def both(self) -> None:
        """Start the one that was killed: it stands by."""
        leads = self.ask_leader()
        for url in self.urls:
            if self.processes[url].poll() is not None:
                self.start(url)
            self.wait(url)
        assert self.leader() == leads

    @staticmethod
    def _answers(url: str, path: str) -> bool:
        try:
            return httpx.get(f"{url}{path}", timeout=5).is_success
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Up, with two machines for a job and a standby."""
    if (programs := servers.postgres_binaries()) is None:
        pytest.skip("PostgreSQL is not installed")
    with servers.postgres(programs) as database, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "PREFECT_"))]:
            patch.delenv(name)
        home = tmp_path_factory.mktemp("pair") / ".holdfast"
        patch.setenv("HOLDFAST_HOME", str(home))
        made = Pair(home, database)
        try:
            # The second one first: agents and `holdfast up` have to find the leader at the second URL.
            first, second = made.urls
            made.start(second)
            made.wait(second)
            made.start(first)
            control.up(made.settings, MACHINES, print)
            made.site = Site(home)
            yield made
        finally:
            control.down(home, print)
            made.stop()


@pytest.fixture
def site(pair: Pair) -> Iterator[Site]:
    """At rest, with both gateways; a failure shows the state of the site."""
    pair.both()
    yield pair.site
    pair.ask_leader()
    pair.site.settle()


Seen = set[tuple[int, int]]
"""Epoch and process of live ranks."""


class Watch:
    """Looks all the time at all agents for two epochs of a job that live at once."""

    def __init__(self, site: Site, job: str) -> None:
        self._job = job
        self._agents = [f"http://{machine.address}" for machine in site.ledger.machines()]
        self._http = httpx.Client(headers=site.headers, timeout=10)
        self.seen: Seen = set()
        self.at_once: list[Seen] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it; at its end there were two epochs, one after the other."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                self._look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            wait_for("the first epoch is seen", lambda: self.seen)
            yield
            wait_for("the second epoch is seen", lambda: len(_epochs(self.seen)) == 2)
        finally:
            over.set()
            thread.join(60)
            self._http.close()
        assert self.at_once == []

    def _look(self) -> None:
        for one, other in itertools.permutations(self._agents, 2):
            before, between, after = self._live(one), self._live(other), self._live(one)
            # Those that lived before and after the other machine was asked lived then, too.
            now = (before & after) | between
            self.seen |= now
            if len(_epochs(now)) > 1:
                self.at_once.append(now)

    def _live(self, agent: str) -> Seen:
        try:
            answer = self._http.get(f"{agent}/v1/state").raise_for_status()
        except httpx.HTTPError:
            return set()
        return {
            (run.epoch, rank.pid)
            for run in AgentState.model_validate_json(answer.content).jobs
            if run.job == self._job
            for rank in run.ranks
            if rank.phase is not RankPhase.EXITED
        }


def _epochs(seen: Seen) -> set[int]:
    return {epoch for epoch, _ in set(seen)}


def test_control_two_epochs_at_once_are_seen() -> None:
    """And one that follows another is not taken for it."""
    for live, conflict in (
        ({"a": {(1, 7)}, "b": {(2, 8)}}, True),
        ({"a": {(1, 7)}, "b": {(1, 8)}}, False),
        ({"a": {(1, 7)}, "b": set()}, False),
        ({"a": {(1, 7), (2, 9)}, "b": set()}, True),
    ):
        watch = Watch.__new__(Watch)
        watch._agents, watch.seen, watch.at_once = ["a", "b"], set(), []
        watch._live = live.__getitem__
        watch._look()
        assert bool(watch.at_once) is conflict, live


def assert_one_restart(site: Site, incident: Incident, *expected: IncidentClass) -> None:
    """One incident, one restart of the job, one open epoch, the old one closed before the new one was opened."""
    name = incident.job
    assert incident.incident_class in expected, site.describe(name)
    assert [each.id for each in site.ledger.incidents(job=name)] == [incident.id]
    assert site.done(incident)["start"] == 1, site.done(incident)
    old, new = site.epochs(name)
    assert old.closed_at is not None
    assert old.closed_at <= new.opened_at
    assert new.closed_at is None
    assert new.incident_id == incident.id
    # How many steps a late peer costs is a matter of how busy the host is.
    assert 0 < new.start_step <= (old.last_step or 0)
    assert set(site.pids(name)) == {0, 1}


def assert_same_machines(site: Site, job: Job, before: dict[str, str]) -> None:
    """Nothing was evicted or swapped, and every agent is the one that it was."""
    assert site.evicted() == set()
    assert site.job(job.name).machines == job.machines
    assert incarnations(site) == before


def incarnations(site: Site) -> dict[str, str]:
    """Of all machines: an agent that was given up, or was restarted, has another one."""
    return {machine.name: machine.incarnation for machine in site.ledger.machines()}


@pytest.mark.thorough
def test_leader_killed_in_the_middle_of_an_incident(pair: Pair, site: Site, name: str) -> None:
    """A rank died, its playbook has begun: the other gateway sees it through."""
    job = site.submit(name)
    before = incarnations(site)
    with Watch(site, name).watching():
        os.kill(site.pids(name)[1], signal.SIGKILL)
        wait_for("the playbook acts", lambda: site.ledger.actions(f"{name}-1"), every_s=0.005)
        left = pair.kill_leader()
        incident = site.wait_recovered(name)
        site.wait_more_steps(name)
    assert pair.ask_leader() == left
    assert_one_restart(site, incident, IncidentClass.JOB_CRASH)
    assert_same_machines(site, job, before)


@pytest.mark.thorough
def test_leader_killed_right_before_a_rank_dies(pair: Pair, site: Site, name: str) -> None:
    """No gateway leads when it happens: the agent reports it to the next one that does."""
    job = site.submit(name)
    before = incarnations(site)
    victim = site.pids(name)[0]
    with Watch(site, name).watching():
        left = pair.kill_leader()
        os.kill(victim, signal.SIGKILL)
        incident = site.wait_recovered(name)
        site.wait_more_steps(name)
    assert pair.ask_leader() == left
    assert_one_restart(site, incident, IncidentClass.JOB_CRASH)
    assert_same_machines(site, job, before)


@pytest.mark.thorough
def test_leader_killed_right_before_a_machine_dies(pair: Pair, site: Site, name: str) -> None:
    """The next one never heard of any machine: it misses the dead one, and none of those that still look for it."""
    job = site.submit(name)
    before = incarnations(site)
    with Watch(site, name).watching():
        left = pair.kill_leader()
        site.fault("kill-machine", job.machines[1])
        incident = site.wait_recovered(name)
        site.wait_more_steps(name)
    assert pair.ask_leader() == left
    # What opens it is whatever the next leader learns first: that a peer was lost, or that a machine is silent.
    assert_one_restart(site, incident, IncidentClass.JOB_CRASH, IncidentClass.MACHINE_FAULT)
    assert site.done(incident)["evict"] == 1
    assert site.evicted() == {job.machines[1]}
    assert site.job(name).machines[0] == job.machines[0]
    left_alone = set(before) - {job.machines[1]}
    assert {machine: incarnations(site)[machine] for machine in left_alone} == {
        machine: before[machine] for machine in left_alone
    }
