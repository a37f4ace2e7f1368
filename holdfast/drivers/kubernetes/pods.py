"""Pods of machines: found, evicted within disruption budgets, and seen gone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Api, BudgetError, ConflictError, Object, patiently
from holdfast.drivers.kubernetes.list_and_watch import follow
from holdfast.errors import RefusedError, SettingsError, UnavailableError, UnknownError

GRACE_S = 1
"""An agent has this long to stop its ranks: they were fenced, and their state is on a peer."""
FORCE_AFTER_S = 4.0
"""A pod that is still there then has no kubelet that answers: it is deleted from the API server by force."""
_GONE_S = 30.0
_POLICIES = ("policy/v1", "policy/v1beta1")


class Pods:
    """Pods of machines in one namespace."""

    def __init__(self, api: Api, budget_s: float) -> None:
        self._api = api
        self._budget_s = budget_s
        self._path = f"/api/v1/namespaces/{api.namespace}/pods"
        self._policies: Sequence[str] = _POLICIES

    def all(self) -> dict[str, Object]:
        """Return pods by machine; of several (one ends while the next is made) the one that does not end."""
        found: dict[str, Object] = {}
        for pod in self._api.get(self._path, labelSelector=bodies.SELECTOR)["items"]:
            name = pod["metadata"]["labels"][bodies.MACHINE]
            if name not in found or is_ending(found[name]):
                found[name] = pod
        return found

    def of(self, machine: str) -> list[Object]:
        """Return all pods of one machine."""
        selector = f"{bodies.MACHINE}={machine}"
        pods: list[Object] = self._api.get(self._path, labelSelector=selector)["items"]
        return pods

    def take_out_of_service(self, pod: Object) -> None:
        """Exclude the pod from the base's budget: a machine that waits for a node would else hold it."""
        path = f"{self._path}/{pod['metadata']['name']}"
        # Another uid is a conflict for newer servers, for older ones the change of a field that cannot change.
        with contextlib.suppress(UnknownError, ConflictError, SettingsError):
            self._api.patch(path, bodies.out_of_service(pod["metadata"]["uid"]))

    def evict(self, pod: Object) -> None:
        """Have the pod leave as soon as disruption budgets allow; harmless when it is gone, or another.

        Raises:
            UnavailableError: a budget did not allow it for as long as the settings allow.
        """
        try:
            patiently(lambda: self._evict_once(pod), BudgetError, timeout_s=self._budget_s)
        except BudgetError as error:
            raise UnavailableError(
                f"{error}. No budget allowed it for {self._budget_s:g} s: wait until the other machines are ready, "
                "widen the PodDisruptionBudget, or raise HOLDFAST_KUBERNETES_BUDGET_S."
            ) from None

    def delete(self, pod: Object, grace_s: int) -> None:
        """Delete this very pod, not one that has its name by now."""
        path = f"{self._path}/{pod['metadata']['name']}"
        with contextlib.suppress(UnknownError, ConflictError):
            self._api.delete(path, gracePeriodSeconds=grace_s, preconditions={"uid": pod["metadata"]["uid"]})

    def wait_gone(self, machine: str) -> None:
        """Wait until the machine has no pod.

        One that stays is deleted without waiting for its kubelet: what may still run on a node that does not
        answer is fenced by epoch and incarnation.

        Raises:
            UnavailableError: pods are still there.
        """
        if self._gone_within(machine, FORCE_AFTER_S):
            return
        for pod in self.of(machine):
            self.delete(pod, 0)
        if not self._gone_within(machine, _GONE_S):
            left = self.of(machine)
            names = ", ".join(pod["metadata"]["name"] for pod in left)
            kept_by = sorted({each for pod in left for each in pod["metadata"].get("finalizers") or []})
            why = f" Their finalizers keep them: {', '.join(kept_by)}." if kept_by else ""
            raise UnavailableError(
                f"machine {machine}: pods {names} are still there {_GONE_S:g} s after deletion.{why}"
            )

    def _gone_within(self, machine: str, timeout_s: float) -> bool:
        selector = f"{bodies.MACHINE}={machine}"
        seen = follow(self._api, self._path, timeout_s, labelSelector=selector)
        return any(not pods for pods in seen)

    def _evict_once(self, pod: Object) -> None:
        path = f"{self._path}/{pod['metadata']['name']}/eviction"
        for version in self._policies:
            try:
                self._api.create(path, bodies.eviction(pod, version, GRACE_S))
            except UnknownError:
                if self._is_gone(pod):
                    return
                continue  # an older server does not know this version of the eviction
            except ConflictError:
                return  # another pod has its name
            except BudgetError:
                raise
            except RefusedError:
                if version == self._policies[-1]:
                    raise
                continue  # 400: the same in another form
            self._policies = (version,)
            return
        raise UnavailableError(f"Kubernetes: {path}: the server knows none of {', '.join(self._policies)}.")

    def _is_gone(self, pod: Object) -> bool:
        # A list: the role of the base lets pods be listed, not read one by one.
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        found = self._api.get(self._path, fieldSelector=f"metadata.name={name}")["items"]
        return all(each["metadata"]["uid"] != uid for each in found)


def is_ending(pod: Object) -> bool:
    """Return whether the pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def phase(pod: Object) -> str:
    """Return ``Pending``, ``Running``, ``Succeeded``, ``Failed`` or ``Unknown``."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_ready(pod: Object) -> bool:
    """Return whether the pod's condition ``Ready`` is true."""
    return condition(pod, "Ready").get("status") == "True"


def condition(pod: Object, kind: str) -> Mapping[str, str]:
    """Return one condition of the pod's status; empty: not there."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def waits_for(pod: Object) -> str:
    """Return why a container of the pod does not run (``ImagePullBackOff``, ``CrashLoopBackOff``); empty: not known."""
    status = pod.get("status") or {}
    for each in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if (reason := waiting.get("reason")) not in (None, "ContainerCreating", "PodInitializing"):
            return f"{reason}: {waiting.get('message') or ''}".rstrip(": ")
    return ""


def node_of(pod: Object) -> str:
    """Return the node that the pod is on; empty: none yet."""
    return str(pod["spec"].get("nodeName") or "")
