"""The service account's rights: enough, none too many, and the absence of each is reported by name."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest

from holdfast.drivers.kubernetes import KubernetesDriver
from holdfast.drivers.kubernetes.api import Object
from holdfast.errors import UnauthorizedError
from holdfast.models.machine import Scope
from tests.e2e.waiting import wait_for
from tests.kubernetes.cluster import ACCOUNT, Cluster, manifests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def roles() -> list[Object]:
    return [each for each in manifests("rbac.yaml") if each["kind"] in ("Role", "ClusterRole")]


def rights() -> list[tuple[str, str, str]]:
    """(role, resource, verb) of every right that the manifests grant."""
    return [
        (role["metadata"]["name"], resource, verb)
        for role in roles()
        for rule in role["rules"]
        for resource, verb in itertools.product(rule["resources"], rule["verbs"])
    ]


def without(role: Object, resource: str, verb: str) -> Object:
    """The role with one right less."""
    less = copy.deepcopy(role)
    for rule in less["rules"]:
        if resource in rule["resources"]:
            rule["verbs"] = [each for each in rule["verbs"] if each != verb]
    less["rules"] = [rule for rule in less["rules"] if rule["verbs"]]
    return less


class Tour:
    """Everything that the driver does, with the rights that the account has at the moment."""

    def __init__(self, cluster: Cluster, driver: KubernetesDriver, namespace: str) -> None:
        self._cluster, self._driver, self._namespace = cluster, driver, namespace

    def go(self) -> None:
        """From the first machine to the last."""
        first, second = self._driver.provision(2)
        # A machine that waits for its node is looked at with its nodes.
        self._driver.machines()
        for name in (first, second):
            wait_for(f"{name} runs", lambda name=name: self._cluster.kubelets.container(name))
        self._driver.evict(first, Scope.CLUSTER, "rights")
        self._driver.machines()
        self._driver.release(first)
        self._driver.retire(second)
        self._driver.retire(first)

    def allow(self, role: Object, resource: str, verb: str, expected: bool) -> None:
        """Apply ``role``, and wait until the API server goes by it."""
        self._cluster.apply(role, self._namespace)
        name, _, subresource = resource.partition("/")
        group = "apps" if name == "statefulsets" else ""
        attributes = {"verb": verb, "resource": name, "subresource": subresource, "group": group}
        if role["kind"] == "Role":
            attributes["namespace"] = self._namespace
        if name == "configmaps":
            attributes["name"] = "holdfast-machines"
        spec = {
            "user": f"system:serviceaccount:{self._namespace}:{ACCOUNT}",
            "resourceAttributes": attributes,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        wait_for(
            f"{verb} {resource} allowed: {expected}",
            lambda: self._cluster.admin.create(path, body)["status"]["allowed"] is expected,
        )

    def clean(self) -> None:
        """No machines, all nodes as new."""
        for machine in self._driver.machines():
            self._driver.retire(machine.name)
        self._cluster.renew_nodes()


@pytest.fixture
def tour(cluster: Cluster, driver: KubernetesDriver, namespace: str) -> Tour:
    return Tour(cluster, driver, namespace)


def test_granted_rights_are_enough(tour: Tour) -> None:
    """The whole tour, as the service account."""
    tour.go()


@pytest.mark.thorough
def test_every_right_is_needed_and_its_absence_is_reported(tour: Tour) -> None:
    """One verb at a time is taken away: the tour stops with an error that names verb and resource."""
    asked = rights()
    assert len(asked) == 15
    for role_name, resource, verb in asked:
        [role] = [each for each in roles() if each["metadata"]["name"] == role_name]
        tour.allow(without(role, resource, verb), resource, verb, expected=False)
        _assert_denied(tour.go, resource, verb)
        tour.allow(role, resource, verb, expected=True)
        tour.clean()


def _assert_denied(go: Callable[[], None], resource: str, verb: str) -> None:
    with pytest.raises(UnauthorizedError) as caught:
        go()
    assert f'cannot {verb} resource "{resource}"' in str(caught.value)
    assert "rbac.yaml" in str(caught.value)
