"""One control plane for all tests here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("kubernetes")

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes import KubernetesDriver
    from tests.kubernetes.cluster import Cluster

NODES = 6
_numbers = itertools.count()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Control plane and nodes, without Holdfast."""
    from tests.kubernetes import control_plane  # noqa: PLC0415  (only where the client is installed)
    from tests.kubernetes.cluster import Cluster  # noqa: PLC0415

    if missing := control_plane.missing():
        pytest.skip(missing)
    with Cluster.up(
        tmp_path_factory.mktemp("kubernetes"), [f"n{number}" for number in range(NODES)]
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _kubelets_work(request: pytest.FixtureRequest) -> Iterator[None]:
    """Say so when pods could not be run, rather than what did not happen for it."""
    yield
    if "cluster" in request.fixturenames:
        kubelets = request.getfixturevalue("cluster").kubelets
        broken, kubelets.broken = kubelets.broken, {}
        assert list(broken.values()) == []


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace with Holdfast's manifests; afterwards all nodes are as new."""
    from tests.kubernetes import templates  # noqa: PLC0415

    name = f"holdfast-{next(_numbers)}"
    cluster.prepare(name, templates.toy())
    yield name
    cluster.remove(name)


@pytest.fixture
def driver(cluster: Cluster, namespace: str) -> KubernetesDriver:
    """A driver with the service account's rights."""
    return cluster.driver(namespace, budget_s=2.0)
