"""The Kubernetes driver's own, on a real control plane: budgets, nodes, priorities, a server that goes away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

import pytest

from holdfast.drivers.base import Supplied
from holdfast.drivers.kubernetes import KubernetesDriver, bodies
from holdfast.drivers.kubernetes.api import Api, GoneError, Object
from holdfast.drivers.kubernetes.list_and_watch import follow
from holdfast.drivers.kubernetes.pods import Pods
from holdfast.errors import SettingsError, UnavailableError, UnknownError
from holdfast.models.machine import Scope
from tests.e2e.waiting import wait_for
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import NODES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def node(cluster: Cluster, name: str) -> Object:
    return cluster.admin.get(f"/api/v1/nodes/{name}")


def pods(cluster: Cluster, namespace: str) -> dict[str, Object]:
    """By machine."""
    items = cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=bodies.SELECTOR)["items"]
    return {each["metadata"]["labels"][bodies.MACHINE]: each for each in items}


def provision(cluster: Cluster, driver: KubernetesDriver, n: int) -> list[str]:
    """Machines that run, as the API server knows."""
    names = driver.provision(n)
    for name in names:
        wait_for(
            lambda name=name: f"{name} runs: {driver.machines()}",
            lambda name=name: listed(driver, name).detail.startswith("node "),
        )
    return names


def listed(driver: KubernetesDriver, name: str) -> Supplied:
    return next(each for each in driver.machines() if each.name == name)


def budget(cluster: Cluster, namespace: str, allowed: int) -> None:
    """Have the site's own budget over machines, and wait until its controller has counted."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "of-the-site"},
        "spec": {"maxUnavailable": allowed, "selector": {"matchLabels": {bodies.ROLE: "machine"}}},
    }
    # Two budgets over one pod refuse every eviction.
    budgets = f"/apis/policy/v1beta1/namespaces/{namespace}/poddisruptionbudgets"
    with suppress(UnknownError):
        cluster.admin.delete(f"{budgets}/{bodies.ROSTER}")
    cluster.apply(body, namespace)

    def counted() -> bool:
        found = cluster.admin.get(f"{budgets}/of-the-site")
        status = found.get("status") or {}
        known = status.get("observedGeneration") == found["metadata"]["generation"]
        return known and status.get("disruptionsAllowed") == allowed

    wait_for(f"a budget of {allowed}", counted)


def test_eviction_waits_for_the_disruption_budget(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """A healthy machine stays while the budget forbids it; the message names the budget; repeated later it goes."""
    first, second = provision(cluster, driver, 2)
    budget(cluster, namespace, 0)
    before = pods(cluster, namespace)[first]["metadata"]["uid"]
    with pytest.raises(UnavailableError, match=r"of-the-site.*HOLDFAST_KUBERNETES_BUDGET_S"):
        driver.evict(first, Scope.CLUSTER, "slow")
    assert pods(cluster, namespace)[first]["metadata"]["uid"] == before
    assert listed(driver, first).alive, "it is marked, and still there"

    budget(cluster, namespace, 1)
    driver.evict(first, Scope.CLUSTER, "slow")
    assert not listed(driver, first).alive
    assert set(pods(cluster, namespace)) == {second}


@pytest.mark.thorough
def test_budget_does_not_protect_a_dead_machine(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """Its node is not ready: nothing is disrupted by taking it out."""
    [name] = provision(cluster, driver, 1)
    budget(cluster, namespace, 0)
    cluster.kubelets.power_off(cluster.kubelets.node_of(name))
    wait_for("the node is seen to be dead", lambda: "not ready" in listed(driver, name).detail)
    driver.evict(name, Scope.CLUSTER, "dead")
    assert pods(cluster, namespace) == {}


def test_machine_on_a_silent_node_is_out_at_once(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """The loss of its kubelet is not noticed yet: the pod is removed by force, and none follows it."""
    [name] = provision(cluster, driver, 1)
    cluster.kubelets.power_off(cluster.kubelets.node_of(name))
    driver.evict(name, Scope.CLUSTER, "no heartbeat")
    assert pods(cluster, namespace) == {}
    assert not listed(driver, name).alive


def test_eviction_of_a_pod_that_was_replaced_touches_no_other(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """The precondition on uid: what has the name now is another pod."""
    [name] = provision(cluster, driver, 1)
    cluster.admin.delete(f"/apis/policy/v1beta1/namespaces/{namespace}/poddisruptionbudgets/{bodies.ROSTER}")
    acting = Pods(driver.api, 2.0)
    former = pods(cluster, namespace)[name]
    acting.evict(former)

    def another() -> Object | None:
        found = pods(cluster, namespace).get(name, former)
        other = found["metadata"]["uid"] != former["metadata"]["uid"]
        return found if other and found["status"]["phase"] == "Running" else None

    now = wait_for("another pod, by the StatefulSet", another)
    acting.take_out_of_service(former)
    acting.evict(former)
    acting.delete(former, 0)
    after = pods(cluster, namespace)[name]["metadata"]
    assert after["uid"] == now["metadata"]["uid"]
    assert after["labels"][bodies.IN_SERVICE] == "true"
    assert "deletionTimestamp" not in after


def test_cluster_scope_cordons_and_job_scope_only_keeps_machines_off(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """A cordon of an administrator survives release; a node out for a job takes others' pods."""
    bad, slow = provision(cluster, driver, 2)
    bad_node, slow_node = cluster.kubelets.node_of(bad), cluster.kubelets.node_of(slow)
    cluster.admin.patch(f"/api/v1/nodes/{bad_node}", {"spec": {"unschedulable": True}})
    driver.evict(bad, Scope.CLUSTER, "Xid 79")
    driver.evict(slow, Scope.JOB, "lags")
    taints = [each["key"] for each in node(cluster, bad_node)["spec"]["taints"]]
    assert "holdfast.dev/evicted" in taints
    assert node(cluster, slow_node)["metadata"]["labels"]["holdfast.dev/evicted"] == "job"
    assert not node(cluster, slow_node)["spec"].get("unschedulable")
    others = provision(cluster, driver, NODES - 2)
    assert not {bad_node, slow_node} & {cluster.kubelets.node_of(name) for name in others}
    driver.release(slow)
    wait_for("the slow one is back", lambda: cluster.kubelets.container(slow))
    assert cluster.kubelets.node_of(slow) == slow_node
    driver.release(bad)
    assert node(cluster, bad_node)["spec"]["unschedulable"] is True, "not our cordon"
    assert "holdfast.dev/evicted" not in [each["key"] for each in node(cluster, bad_node)["spec"]["taints"]]


def test_replaced_node_is_seen_and_left_alone(cluster: Cluster, driver: KubernetesDriver) -> None:
    """Repair by replacement: a new node of the same name was never cordoned, and takes the machine."""
    [name] = provision(cluster, driver, 1)
    where = cluster.kubelets.node_of(name)
    driver.evict(name, Scope.CLUSTER, "Xid 79")
    assert listed(driver, name).detail == f"evicted (cluster): Xid 79; node {where} is kept out"
    cluster.kubelets.power_off(where)
    cluster.admin.delete(f"/api/v1/nodes/{where}")
    assert listed(driver, name).detail.endswith(f"node {where} is gone")
    cluster.kubelets.add(where)
    assert f"node {where} was replaced" in listed(driver, name).detail
    driver.release(name)
    wait_for("it runs", lambda: cluster.kubelets.container(name))
    assert not node(cluster, where)["spec"].get("unschedulable")


@pytest.mark.thorough
def test_standby_makes_room_for_a_machine_that_needs_its_node(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """Machines beyond those that jobs need have a low priority: the scheduler preempts them, not the others."""
    limited = cluster.driver(
        namespace,
        machines=NODES - 1,
        priority_class="holdfast-machine",
        standby_priority_class="holdfast-standby",
    )
    *needed, standby = provision(cluster, limited, NODES)
    classes = {name: each["spec"]["priorityClassName"] for name, each in pods(cluster, namespace).items()}
    assert classes == {**dict.fromkeys(needed, "holdfast-machine"), standby: "holdfast-standby"}
    template = cluster.admin.get(f"/api/v1/namespaces/{namespace}/podtemplates/holdfast-machine")["template"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "serving"}, "spec": template["spec"]}
    body["spec"]["containers"][0]["env"].insert(0, {"name": "HOLDFAST_MACHINE", "value": "serving"})
    cluster.admin.create(f"/api/v1/namespaces/{namespace}/pods", body)
    wait_for("the standby's node is taken", lambda: cluster.kubelets.container("serving"))
    wait_for("the standby waits", lambda: listed(driver, standby).detail.startswith("pending"))
    assert "preempt" in listed(driver, standby).detail or "Insufficient" in listed(driver, standby).detail
    assert all(listed(driver, name).alive for name in needed)
    # An evicted one of those that are needed is made up for.
    driver.evict(needed[0], Scope.CLUSTER, "test")
    [new] = limited.provision(1)
    made = cluster.admin.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{new}")
    assert made["spec"]["template"]["spec"]["priorityClassName"] == "holdfast-machine"
    cluster.admin.delete(f"/api/v1/namespaces/{namespace}/pods/serving", gracePeriodSeconds=0)


def test_restart_of_the_api_server_is_waited_out(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """An eviction that is asked for while nothing listens is done when it does; watches go on, old ones again (410)."""
    first, second = provision(cluster, driver, 2)
    path = f"/api/v1/namespaces/{namespace}/pods"
    seen: list[int] = []

    def look() -> None:
        for objects in follow(driver.api, path, 240.0):
            seen.append(len(objects))
            if len(objects) == 1:
                return

    with ThreadPoolExecutor(2) as beside:
        looking = beside.submit(look)
        wait_for("the watch stands", lambda: seen)
        cluster.plane.kill("kube-apiserver")
        evicting = beside.submit(driver.evict, first, Scope.CLUSTER, "test")
        cluster.plane.start_apiserver()
        evicting.result(240)
        looking.result(240)
    assert seen[-1] == 1
    assert cluster.kubelets.container(first) is None
    # The StatefulSet controller may have made another pod before it heard; no node takes it.
    wait_for("one pod", lambda: set(pods(cluster, namespace)) == {second})

    # The server has forgotten what was before its start.
    with pytest.raises(GoneError):
        next(driver.api.watch(path, resource_version="1", timeout_s=60))
    late = Late(driver.api)
    assert [len(objects) for objects in islice(follow(late, path, 60.0), 2)] == [1, 1]
    assert late.lists == 2


class Late:
    """Lists as of long ago, the first time."""

    def __init__(self, api: Api) -> None:
        self.lists = 0
        self._api = api

    def get(self, path: str, **query: str) -> Object:
        answer = self._api.get(path, **query)
        self.lists += 1
        if self.lists == 1:
            answer["metadata"]["resourceVersion"] = "1"
        return answer

    def watch(self, path: str, *, resource_version: str, timeout_s: float, **query: str) -> Iterator[Object]:
        return self._api.watch(path, resource_version=resource_version, timeout_s=timeout_s, **query)


def test_two_control_planes_never_give_one_name_twice(cluster: Cluster, namespace: str) -> None:
    """The roster is changed only as it was read."""
    names: list[str] = []
    drivers = [cluster.driver(namespace) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda driver=driver: names.extend(driver.provision(3))) for driver in drivers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(names) == sorted(f"m{number}" for number in range(12))


def test_group_has_its_own_template_and_names(
    cluster: Cluster, driver: KubernetesDriver, namespace: str
) -> None:
    """A group without one is refused, and the message names the missing part."""
    with pytest.raises(SettingsError, match=r"group = 'h200'.*'holdfast-machine-h200'"):
        driver.provision(1, "h200")
    path = f"/api/v1/namespaces/{namespace}/podtemplates"
    template = cluster.admin.get(f"{path}/holdfast-machine")["template"]
    cluster.admin.create(
        path,
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "holdfast-machine-h200"},
            "template": template,
        },
    )
    assert driver.provision(1, "h200") == ["h200-m0"]
    assert driver.provision(1) == ["m1"]
    driver.retire("h200-m0")
    driver.retire("h200-m0")


def test_namespace_without_holdfast_is_reported(cluster: Cluster) -> None:
    """With the manifest to apply, and where."""
    api = Api.connect(str(cluster.plane.kubeconfig), "default")
    with pytest.raises(SettingsError, match="'default'"):
        KubernetesDriver(api).provision(1)
