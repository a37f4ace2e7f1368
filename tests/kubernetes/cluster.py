"""A cluster with Holdfast's own manifests applied, and nodes to run machines on."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Api, ConflictError, Object
from holdfast.drivers.kubernetes.driver import KubernetesDriver
from tests.e2e.waiting import wait_for
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kubelets import Kubelets

BASE = Path(__file__).parents[2] / "deployments" / "kubernetes" / "base"
ACCOUNT = "holdfast"
_PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "PodTemplate": "/api/v1/namespaces/{}/podtemplates",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Namespace": "/api/v1/namespaces",
}


def manifests(*files: str) -> list[Object]:
    """Objects of files of the kustomize base."""
    return [
        each for file in files for each in yaml.safe_load_all((BASE / file).read_text()) if each is not None
    ]


class Cluster:
    """A control plane, its kubelets, and namespaces that look as after ``kubectl apply -k``."""

    def __init__(self, plane: ControlPlane, kubelets: Kubelets) -> None:
        self.plane = plane
        self.kubelets = kubelets
        self.admin = plane.api()

    @classmethod
    @contextmanager
    def up(
        cls, root: Path, nodes: Sequence[str], extra: Mapping[str, str] | None = None
    ) -> Iterator[Cluster]:
        """Start everything in ``root``; ``extra`` is added to the environment of every container."""
        with ControlPlane.up(root / "plane") as plane:
            kubelets = Kubelets(plane.api(), root / "kubelets", extra)
            kubelets.start(nodes)
            try:
                yield cls(plane, kubelets)
            finally:
                kubelets.stop()

    def apply(self, body: Object, namespace: str) -> Object:
        """Create an object, or replace its content."""
        body = copy.deepcopy(body)
        for subject in body.get("subjects", ()):
            subject["namespace"] = namespace
        if body["kind"] == "PodDisruptionBudget":
            body["apiVersion"] = "policy/v1beta1"  # what this server has
        path = _PATHS[body["kind"]].format(namespace)
        try:
            return self.admin.create(path, body)
        except ConflictError:
            return self.admin.patch(f"{path}/{body['metadata']['name']}", body)

    def prepare(self, namespace: str, template: Object) -> None:
        """A namespace with the account, its rights, the roster and ``template`` to make machines from."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, namespace)
        for body in [*manifests("rbac.yaml", "machines.yaml"), template]:
            self.apply(body, namespace)
        wait_for(
            "the account's first token",
            lambda: self.admin.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}").get(
                "secrets"
            ),
        )

    def kubeconfig(self, namespace: str) -> Path:
        """A kubeconfig of Holdfast's service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        token = self.admin.create(path, body)["status"]["token"]
        file = self.plane.root / f"kubeconfig-{namespace}"
        self.plane.write_kubeconfig(file, token, namespace)
        return file

    def driver(self, namespace: str, **options: object) -> KubernetesDriver:
        """A driver with the rights of the service account, no more."""
        api = Api.connect(str(self.kubeconfig(namespace)), namespace)
        return KubernetesDriver(api, **options)  # type: ignore[arg-type]

    def remove(self, namespace: str) -> None:
        """Take all machines and jobs of a namespace away, by deleting what owns them; then all nodes are as new."""
        self.admin.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs", propagationPolicy="Background")
        self.admin.delete(f"/api/v1/namespaces/{namespace}/configmaps/{bodies.ROSTER}")
        self.renew_nodes()
        selector = bodies.SELECTOR
        wait_for(
            f"no pods in {namespace}",
            lambda: (
                not self.admin.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
            ),
        )

    def renew_nodes(self) -> None:
        """Nodes that a test broke or took out are replaced by new ones of the same names."""
        for node in self.admin.get("/api/v1/nodes")["items"]:
            touched = node["spec"].get("unschedulable") or bodies.EVICTED in (
                node["metadata"].get("labels") or {}
            )
            if touched or not bodies.is_ready(node) or not self.kubelets.is_on(node["metadata"]["name"]):
                self.kubelets.replace(node["metadata"]["name"])
