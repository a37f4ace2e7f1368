"""The Kubernetes driver against the driver contract, on a real control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.drivers import processes
from holdfast.drivers.base import Driver
from holdfast.testing.driver_conformance import DriverConformance
from tests.kubernetes.cluster import Cluster

TOY_PROCESSES = 5


@pytest.mark.e2e
@pytest.mark.timeout(600)
class TestKubernetesDriver(DriverConformance):
    """The contract."""

    @pytest.fixture(autouse=True)
    def _with_cluster(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def ready(self, driver: Driver, name: str) -> bool:
        container = self.cluster.kubelets.container(name)
        if not container or processes.find_agent(container.machine) is None:
            return False
        return self.processes(driver, name) == TOY_PROCESSES

    def processes(self, driver: Driver, name: str) -> int:
        container = self.cluster.kubelets.container(name)
        return len(processes.find_all(container.machine)) if container else 0

    def folder(self, driver: Driver, name: str) -> Path:
        container = self.cluster.kubelets.container(name)
        assert container
        return container.machine

    def crash(self, driver: Driver, name: str) -> None:
        self.cluster.kubelets.power_off(self.cluster.kubelets.node_of(name))
