"""One site on a lab's hosts for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.network import driver, lab, steps
from tests.network.lab import CONTROL, Lab

HOSTS = 5
SCRIPTS = Path(__file__).with_name("scripts")
POLICY = """\
breaker: {at_least: 1000, job_at_least: 1000}
ladder: {offender: 1000}
spare_pool: {minimum: 1}
standby: {admission: false}
gateway: {offline_after_s: 10}
diagnose: {check_timeout_s: 8}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here takes real processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(800))


@pytest.fixture(scope="package")
def wires() -> Iterator[Lab]:
    """Hosts and their network."""
    if why := lab.missing():
        pytest.skip(why)
    built = Lab([f"m{number}" for number in range(HOSTS)])
    try:
        yield built.open()
    finally:
        built.close()


@dataclass(frozen=True)
class Cluster:
    """A site, its network, and what its ranks noted."""

    site: Site
    wires: Lab
    notes: Path

    def submit(self, name: str, machines: int, spare: int = 1) -> tuple[str, ...]:
        """Start a job; returns its machines."""
        args = ("--notes", str(self.notes))
        job = self.site.submit(
            name, *args, machines=machines, spare=spare, code_dir=SCRIPTS, script="train.py"
        )
        return job.machines

    def generations(self, name: str) -> list[steps.Generation]:
        """Of a job."""
        return steps.generations(self.notes, name)

    def step(self, name: str) -> int:
        """The newest step that a rank of the newest generation noted; the network is not asked."""
        found = self.generations(name)
        return found[-1].step if found else 0

    def last_word(self, name: str) -> float:
        """When a rank last noted anything; this host's monotonic clock, in seconds."""
        found = self.generations(name)
        return max((each.last for each in found), default=0.0)

    def logged(self, machine: str, text: str) -> bool:
        """Whether the machine's agent wrote so in its log."""
        return text in (self.site.home / "machines" / machine / "agent.log").read_text()

    def gateway_logged(self, text: str) -> bool:
        """Whether the gateway wrote so in its log."""
        return text in (self.site.home / "logs" / "gateway.log").read_text()


@pytest.fixture(scope="package")
def whole_cluster(wires: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Control plane on this host, agents in the lab's hosts."""
    with running(wires, tmp_path_factory.mktemp("network"), POLICY) as cluster:
        yield cluster


@contextmanager
def running(wires: Lab, folder: Path, policy: str, **environment: str) -> Iterator[Cluster]:
    """A cluster on a lab's hosts, in a folder of its own."""
    home = folder / ".holdfast"
    package = driver.write_package(folder / "package")
    driver.write_hosts(home, {host: (wires.namespace(host), wires.address(host)) for host in wires.hosts})
    notes = folder / "notes"
    notes.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "PREFECT_"))]:
            patch.delenv(name)
        patch.syspath_prepend(str(package))
        patch.setenv("PYTHONPATH", f"{package}{os.pathsep}{Path(__file__).parents[2]}")
        patch.setenv("HOLDFAST_HOME", str(home))
        patch.setenv("HOLDFAST_PRELOAD", "torch,torch.distributed")
        for name, value in environment.items():
            patch.setenv(name, value)
        site = Site.up(
            home,
            len(wires.hosts),
            policy=policy,
            driver=driver.NAME,
            host=wires.control,
            allow_plaintext=True,
        )
        try:
            yield Cluster(site, wires, notes)
        finally:
            site.down()


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster at rest; whatever a test cuts is healed."""
    yield whole_cluster
    whole_cluster.wires.plug(CONTROL)
    for host in whole_cluster.wires.hosts:
        whole_cluster.wires.plug(host)
        whole_cluster.wires.heal_all(host)
    whole_cluster.site.settle()
