"""Kubelets of nodes that are not there: they register nodes, report, and run pods as processes of this host."""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.drivers.kubernetes.api import Api, ConflictError, Object
from holdfast.drivers.kubernetes.list_and_watch import follow
from holdfast.errors import HoldfastError, UnknownError
from tests.kubernetes.container import Container

_log = logging.getLogger(__name__)

BEAT_S = 1.0
TICK_S = 0.05
RESTART_S = 0.5
"""A container that ended is started again after so long."""
_ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}


class Kubelets:
    """All kubelets of a cluster, in threads of this process. ``extra`` is added to every container's environment."""

    def __init__(self, api: Api, root: Path, extra: Mapping[str, str] | None = None) -> None:
        self.errors: list[str] = []
        """Requests that the API server did not serve."""
        self.broken: dict[str, str] = {}
        """Pods that could not be run, by uid, and why: what is wrong with the test's own machinery."""
        self._api = api
        self._root = root
        self._extra = dict(extra or {})
        self._lock = threading.RLock()
        self._nodes: dict[str, bool] = {}  # whether it has power
        self._wanted: Mapping[str, Object] = {}  # pods by uid, as the API server has them
        self._running: dict[str, Container] = {}
        self._ending: dict[str, float] = {}
        self._restart_at: dict[str, float] = {}
        self._given_ips = 0
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"kubelets-{target.__name__}", daemon=True)
            for target in (self._beats, self._watch, self._work)
        ]

    def start(self, nodes: Iterable[str] = ()) -> None:
        """Register ``nodes`` and run what is bound to them."""
        for name in nodes:
            self.add(name)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, with all containers."""
        self._over.set()
        for thread in self._threads:
            thread.join(15)
        with self._lock:
            for container in self._running.values():
                container.destroy()
            self._running.clear()

    def add(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """A new node, which registers with its status, as a kubelet does.

        Kubernetes 1.20's controller manager ends itself when it looks at one without, under a name that was not ready.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "status": {"capacity": _ROOM, "allocatable": _ROOM, "conditions": [_ready()]},
        }
        self._api.create("/api/v1/nodes", body)
        with self._lock:
            self._nodes[name] = True

    def power_off(self, name: str) -> None:
        """The node is gone from one moment to the next: its processes, memory and disk, and its kubelet."""
        with self._lock:
            self._nodes[name] = False
            for uid in [uid for uid, each in self._running.items() if each.pod["spec"]["nodeName"] == name]:
                self._running.pop(uid).destroy()
                self._ending.pop(uid, None)

    def power_on(self, name: str) -> None:
        """It comes back, empty."""
        with self._lock:
            self._nodes[name] = True

    def replace(self, name: str) -> None:
        """Another node under the same name."""
        self.power_off(name)
        self._api.delete(f"/api/v1/nodes/{name}")
        self.add(name)

    def cut_off(self, name: str) -> None:
        """The kubelet does not reach the API server any more; its containers run on."""
        with self._lock:
            self._nodes[name] = False

    def is_on(self, name: str) -> bool:
        """Whether the node has power and its kubelet reports."""
        return self._nodes.get(name, False)

    def container(self, machine: str) -> Container | None:
        """The running container of a machine's pod."""
        with self._lock:
            found = [each for each in self._running.values() if each.machine.name == machine]
        return found[0] if found else None

    def node_of(self, machine: str) -> str:
        """The node of a machine's pod."""
        container = self.container(machine)
        assert container is not None, f"{machine} does not run"
        return str(container.pod["spec"]["nodeName"])

    def _beats(self) -> None:
        while not self._over.wait(BEAT_S):
            for name in [name for name, on in list(self._nodes.items()) if on]:
                # At once with the look: else a late answer about a node that was replaced turns its successor off.
                with self._lock:
                    if not self._nodes[name]:
                        continue
                    try:
                        self._beat(name)
                    except UnknownError:
                        self._nodes[name] = False
                    except HoldfastError as error:
                        self.errors.append(f"beat {name}: {error}")

    def _beat(self, name: str) -> None:
        self._api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [_ready()]}})

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                for pods in follow(self._api, "/api/v1/pods", 3.0):
                    self._wanted = dict(pods)
                    if self._over.is_set():
                        return
            except HoldfastError as error:
                self.errors.append(f"pods: {error}")
                time.sleep(BEAT_S)

    def _work(self) -> None:
        while not self._over.wait(TICK_S):
            wanted = self._wanted
            for uid, pod in wanted.items():
                try:
                    with self._lock:
                        if self._nodes.get(pod["spec"].get("nodeName", "")):
                            self._sync(uid, pod)
                except (UnknownError, ConflictError):
                    continue  # it changed meanwhile: next time
                except HoldfastError as error:
                    self.errors.append(f"{pod['metadata']['name']}: {error}")
                except Exception as error:
                    self.broken[uid] = f"{pod['metadata']['name']}: {error!r}"
            self._clean(wanted)

    def _sync(self, uid: str, pod: Object) -> None:
        """Bring one pod a step nearer to what is wanted."""
        ending = "deletionTimestamp" in pod["metadata"]
        once = pod["spec"].get("restartPolicy") == "Never"
        phase = pod["status"].get("phase", "Pending")
        container = self._running.get(uid)
        if ending:
            self._end(uid, pod, container)
        elif container is None:
            if not once or phase == "Pending":  # else it ended, or went down with its node
                self._begin(uid, pod)
        elif once and container.has_ended():
            if phase not in ("Succeeded", "Failed"):
                self._report_status(pod, container)
        elif container.has_ended():
            at = self._restart_at.setdefault(uid, time.monotonic() + RESTART_S)
            if time.monotonic() > at:
                del self._restart_at[uid]
                container.kill()
                container.restarts += 1
                container.start()
                self._report_status(pod, container)

    def _begin(self, uid: str, pod: Object) -> None:
        self._given_ips += 1
        ip = f"127.21.{self._given_ips // 250}.{self._given_ips % 250 + 1}"
        folder = self._root / "pods" / uid
        folder.mkdir(parents=True, exist_ok=True)
        namespace = pod["metadata"]["namespace"]
        container = Container(
            pod, ip, folder, lambda kind, name: self._data(namespace, kind, name), self._extra
        )
        self._running[uid] = container
        container.start()
        self._report_status(pod, container)

    def _end(self, uid: str, pod: Object, container: Container | None) -> None:
        grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        if container is not None:
            if uid not in self._ending:
                self._ending[uid] = time.monotonic() + grace_s
                container.terminate()
            if not container.has_ended() and time.monotonic() < self._ending[uid]:
                return
            container.destroy()
            self._running.pop(uid)
            self._ending.pop(uid)
        metadata = pod["metadata"]
        self._api.delete(
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}",
            gracePeriodSeconds=0,
            preconditions={"uid": uid},
        )

    def _clean(self, wanted: Mapping[str, Object]) -> None:
        """Containers whose pod was deleted by force."""
        with self._lock:
            for uid in [uid for uid in self._running if uid not in wanted]:
                if self._nodes.get(self._running[uid].pod["spec"]["nodeName"]):
                    self._running.pop(uid).destroy()
                    self._ending.pop(uid, None)

    def _report_status(self, pod: Object, container: Container) -> None:
        metadata = pod["metadata"]
        phase, state = "Running", {"running": {"startedAt": _now()}}
        if container.has_ended():
            phase = "Failed" if container.exit_code else "Succeeded"
            state = {"terminated": {"exitCode": container.exit_code, "finishedAt": _now()}}
        runs = phase == "Running"
        states = [
            {
                "name": each["name"],
                "image": each["image"],
                "imageID": "none",
                "ready": runs,
                "started": runs,
                "restartCount": container.restarts,
                "state": state,
            }
            for each in pod["spec"]["containers"]
        ]
        kinds = ("Initialized", "ContainersReady", "Ready", "PodScheduled")
        status = {
            "phase": phase,
            "startTime": _now(),
            "podIP": container.ip,
            "podIPs": [{"ip": container.ip}],
            "hostIP": "127.0.0.1",
            "containerStatuses": states,
            "conditions": [
                {"type": kind, "status": str(runs or "Ready" not in kind), "lastTransitionTime": _now()}
                for kind in kinds
            ],
        }
        self._api.patch(
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status",
            {"metadata": {"uid": metadata["uid"]}, "status": status},
        )

    def _data(self, namespace: str, kind: str, name: str) -> Mapping[str, str]:
        data: Mapping[str, str] = self._api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")["data"]
        return data


def _ready() -> Object:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "",
        "lastHeartbeatTime": _now(),
        "lastTransitionTime": _now(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
