"""The Kubernetes driver: a machine is a pod with the agent of Holdfast in it, on a node of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from holdfast.drivers.base import Leaving, Supplied, require_unit
from holdfast.drivers.kubernetes import bodies, pods
from holdfast.drivers.kubernetes.api import Api, ConflictError, Object, now
from holdfast.drivers.kubernetes.bodies import EvictedNote
from holdfast.drivers.kubernetes.nodes import Nodes
from holdfast.drivers.kubernetes.pods import Pods
from holdfast.drivers.kubernetes.roster import MachineNames
from holdfast.drivers.kubernetes_settings import KubernetesSettings
from holdfast.errors import SettingsError, UnknownError
from holdfast.models.incarnation import unit_of
from holdfast.models.location import Location
from holdfast.models.machine import Scope
from holdfast.settings import Settings, read

TEMPLATE = "holdfast-machine"
OBSERVED_S = 0.1
"""Interval between checks whether a controller has read its last change."""


class KubernetesDriver:
    """Machines of one namespace. All state is the cluster's: any number of processes may use drivers side by side."""

    name = "kubernetes"

    def __init__(
        self,
        api: Api,
        *,
        machines: int = 0,
        priority_class: str = "",
        standby_priority_class: str = "",
        budget_s: float = 30.0,
    ) -> None:
        """Give ``machines`` machines ``priority_class``; those beyond are standbys, with ``standby_priority_class``."""
        self.api = api
        self._machines = machines
        self._classes = (priority_class, standby_priority_class)
        self._sets = f"/apis/apps/v1/namespaces/{api.namespace}/statefulsets"
        self._roster = MachineNames(api)
        self._nodes = Nodes(api)
        self._pods = Pods(api, budget_s)

    @classmethod
    def from_settings(cls, settings: Settings) -> KubernetesDriver:
        """Return the driver of the cluster and namespace that the settings name.

        Raises:
            SettingsError: there is no kubeconfig, or it cannot be used.
        """
        own = read(KubernetesSettings, settings.home)
        return cls(
            Api.connect(own.config, own.namespace),
            machines=own.machines,
            priority_class=own.priority_class,
            standby_priority_class=own.standby_priority_class,
            budget_s=own.budget_s,
        )

    def machines(self) -> list[Supplied]:
        """Return all machines of the namespace that were not retired.

        Raises:
            UnauthorizedError: the service account may not; the message names verb and resource.
            UnavailableError: the API server does not answer.
        """
        sets = self._api_sets()
        found = self._pods.all() if sets else {}
        # Read only when something is wrong: 1,200 nodes are many bytes.
        odd = any(bodies.evicted(each) or not _runs(found.get(name)) for name, each in sets.items())
        nodes = self._nodes.all() if odd else None
        return [_supplied(name, each, found.get(name), nodes) for name, each in sets.items()]

    def leaving(self) -> list[Leaving]:
        """Return machines whose node others cordoned, or that the cluster is about to take away.

        Raises:
            UnauthorizedError: the service account may not; the message names verb and resource.
            UnavailableError: the API server does not answer.
        """
        why = {name: bodies.leaves(node) for name, node in self._serving().items()}
        return [Leaving(name=name, reason=reason) for name, reason in why.items() if reason]

    def locations(self) -> dict[str, Location]:
        """Return the failure domains of machines in service, from labels of their nodes.

        Raises:
            UnauthorizedError: the service account may not; the message names verb and resource.
            UnavailableError: the API server does not answer.
        """
        found = {name: bodies.location(node) for name, node in self._serving().items()}
        return {name: where for name, where in found.items() if where}

    def node_of(self, machine: str) -> str:
        """Return the node that an evicted machine was on; empty: it was on none, or is not evicted.

        Raises:
            UnknownError: there was never such a machine.
            UnavailableError: the API server does not answer.
        """
        found = self._set(machine)
        why = bodies.evicted(found) if found is not None else None
        return why.node if why is not None else ""

    def _serving(self) -> dict[str, Object]:
        """Return the nodes of machines in service, by machine."""
        sets = self._api_sets()
        here = {
            name: pods.node_of(pod)
            for name, pod in (self._pods.all() if sets else {}).items()
            if name in sets and not bodies.evicted(sets[name]) and not pods.is_ending(pod)
        }
        nodes = self._nodes.all() if any(here.values()) else {}
        return {name: nodes[node] for name, node in here.items() if node in nodes}

    def provision(self, n: int, group: str = "") -> list[str]:
        """Make ``n`` machines from the PodTemplate ``holdfast-machine`` (of a group: ``holdfast-machine-GROUP``).

        They are pending until the scheduler finds nodes for them.

        Raises:
            SettingsError: ``n`` is negative, or there is no usable template.
            UnauthorizedError: the service account may not.
        """
        if n < 0:
            raise SettingsError(f"provision: n = {n}, expected 0 or more.")
        if n == 0:
            return []
        template = self._template(group)
        names, roster = self._roster.add(n, group)
        priorities = self._priorities(n)
        for name, priority in zip(names, priorities, strict=True):
            try:
                self.api.create(self._sets, bodies.machine(name, template, roster, priority))
            except ConflictError:
                continue  # the first try arrived, its answer did not
        return names

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Take ``machine`` out: mark it, keep its node from being used, have its pod leave, see that it is gone.

        Of several evictions the widest scope counts.

        Raises:
            UnknownError: there was never such a machine.
            ReplacedUnitError: the pod of that ``incarnation`` is gone, and the machine has another one.
            UnavailableError: a disruption budget holds the pod, or the pod does not go away.
            UnauthorizedError: the service account may not.
        """
        found = self._set(machine)
        if found is None:
            return
        here = self._pods.of(machine)
        self._require_present(machine, incarnation, here)
        why = bodies.evicted(found) or self._evicted(scope, reason, here)
        if scope is Scope.CLUSTER and why.scope is Scope.JOB:
            why = why.model_copy(update={"scope": scope, "reason": reason})
        self._patch_set(machine, bodies.intent_to_evict(why))
        if why.node:
            self._nodes.take_out(why.node, machine, why.scope)
        for pod in here:
            self._remove(pod)
        self._park(machine)

    def withdraw(self) -> None:
        """Do nothing: no request waits without a name; a pod that is pending is a machine, which is retired."""

    def release(self, machine: str, incarnation: str = "") -> None:
        """Give an evicted machine's node back and restart the machine; one that is up is left alone.

        It starts on that node if there is room, else on any.

        Raises:
            UnknownError: there is no such machine, or it was retired.
            ReplacedUnitError: it had another pod since ``incarnation``, and that was evicted or died.
        """
        found = self._set(machine)
        if found is None:
            raise UnknownError(f"machine {machine!r} was retired: provision a new one.")
        why = bodies.evicted(found)
        if why is None:
            self._start_again_if_dead(machine, incarnation)
            return
        require_unit(machine, incarnation, why.pod_uid)
        self._park(machine)  # an eviction that was killed half way left a pod
        if why.node:
            self._nodes.give_back(why.node, why.node_uid, machine)
        self._patch_set(machine, bodies.in_service(found, why.node))

    def retire(self, machine: str, incarnation: str = "") -> None:
        """Delete ``machine``. The node of an evicted one stays cordoned: it is uncordoned by the person who repairs it.

        Raises:
            UnknownError: there was never such a machine.
            ReplacedUnitError: the pod of that ``incarnation`` is gone, and the machine has another one.
        """
        if (found := self._set(machine)) is None:
            return
        if incarnation:
            self._require_present(machine, incarnation, self._pods.of(machine))
        why = bodies.evicted(found)
        if why is not None and why.scope is Scope.JOB:
            self._nodes.give_back(why.node, why.node_uid, machine)
        # Gone: another process was faster, or it was this one, and the answer of its first try was lost.
        with contextlib.suppress(UnknownError):
            self.api.delete(f"{self._sets}/{machine}", propagationPolicy="Background")
        for pod in self._pods.of(machine):
            self._pods.delete(pod, pods.GRACE_S)
        self._pods.wait_gone(machine)

    @staticmethod
    def _require_present(machine: str, incarnation: str, here: Sequence[Object]) -> None:
        """Refuse to act on ``machine`` where it has pods, and none of them is that of ``incarnation``.

        Raises:
            ReplacedUnitError: so it is.
        """
        if here and unit_of(incarnation) not in {pod["metadata"]["uid"] for pod in here}:
            require_unit(machine, incarnation, here[0]["metadata"]["uid"])

    def _api_sets(self) -> dict[str, Object]:
        items = self.api.get(self._sets, labelSelector=bodies.SELECTOR)["items"]
        by_name = {
            each["metadata"]["name"]: each for each in items if "deletionTimestamp" not in each["metadata"]
        }
        return dict(sorted(by_name.items(), key=lambda item: (len(item[0]), item[0])))

    def _set(self, machine: str) -> Object | None:
        """Return the machine's StatefulSet; None: it was retired.

        Raises:
            UnknownError: there was never such a machine.
        """
        known = self._api_sets()
        if machine in known:
            return known[machine]
        if self._roster.ever_had(machine):
            return None
        raise UnknownError(f"unknown machine {machine!r}. Machines: {', '.join(known) or 'none'}.")

    def _patch_set(self, machine: str, patch: Object) -> None:
        self.api.patch(f"{self._sets}/{machine}", patch)

    def _park(self, machine: str) -> None:
        """Request no pod for ``machine``, and wait until there is none."""
        self._patch_set(machine, bodies.parked())
        self._wait_observed(machine)
        self._pods.wait_gone(machine)

    def _wait_observed(self, machine: str) -> None:
        """Wait until the StatefulSet's controller has read its last change: before, it may make another pod.

        Not longer than for a pod: a controller that is away makes none.
        """

        def observed() -> bool:
            found = self.api.get(self._sets, fieldSelector=f"metadata.name={machine}")["items"]
            return all(
                (each.get("status") or {}).get("observedGeneration", 0) >= each["metadata"]["generation"]
                for each in found
            )

        Retrying(
            retry=retry_if_result(lambda known: not known),
            wait=wait_fixed(OBSERVED_S),
            stop=stop_after_delay(pods.FORCE_AFTER_S),
            retry_error_callback=lambda _: False,
        )(observed)

    def _evicted(self, scope: Scope, reason: str, here: list[Object]) -> EvictedNote:
        name = next((pods.node_of(pod) for pod in here if pods.node_of(pod)), "")
        node = self._nodes.get(name) if name else None
        return EvictedNote(
            scope=scope,
            reason=reason,
            at=now(),
            node=name if node else "",
            node_uid=node["metadata"]["uid"] if node else "",
            pod_uid=here[0]["metadata"]["uid"] if here else "",
        )

    def _remove(self, pod: Object) -> None:
        """Evict a healthy pod within the disruption budgets; delete a dead one, which they do not protect."""
        if pods.is_ending(pod):
            return
        node = self._nodes.get(pods.node_of(pod)) if pods.node_of(pod) else None
        if pods.is_ready(pod) and node is not None and bodies.is_ready(node):
            self._pods.take_out_of_service(pod)
            self._pods.evict(pod)
        else:
            self._pods.delete(pod, 0)

    def _start_again_if_dead(self, machine: str, incarnation: str) -> None:
        nodes = self._nodes.all()
        for pod in self._pods.of(machine):
            if not _alive(pod, nodes):
                require_unit(machine, incarnation, pod["metadata"]["uid"])
                self._pods.delete(pod, 0)

    def _template(self, group: str) -> Object:
        name = f"{TEMPLATE}-{group}" if group else TEMPLATE
        path = f"/api/v1/namespaces/{self.api.namespace}/podtemplates/{name}"
        try:
            return bodies.check_template(self.api.get(path), name)
        except UnknownError:
            why = f"provision: group = {group!r}, but there" if group else "There"
            raise SettingsError(
                f"{why} is no PodTemplate {name!r} in namespace {self.api.namespace!r}: apply one "
                "(deployments/kubernetes/base/machine.yaml shows how)."
            ) from None

    def _priorities(self, n: int) -> list[str]:
        """Return the priority class of each new machine: as many as jobs need rank above standbys.

        A pod's priority is fixed when it is made. A standby that is swapped in keeps its own; the machine that
        refills the pool after it makes up the number.
        """
        high, low = self._classes
        have = sum(
            bodies.evicted(each) is None
            and (each["spec"]["template"]["spec"].get("priorityClassName") or "") != low
            for each in self._api_sets().values()
        )
        missing = max(0, self._machines - have) if high != low else n
        return [high] * min(n, missing) + [low] * max(0, n - missing)


def _runs(pod: Object | None) -> bool:
    return pod is not None and pods.is_ready(pod) and not pods.is_ending(pod)


def _alive(pod: Object, nodes: Mapping[str, Object]) -> bool:
    if pods.phase(pod) in ("Failed", "Succeeded") or pods.is_ending(pod):
        return False
    node = pods.node_of(pod)
    return not node or (node in nodes and bodies.is_ready(nodes[node]))


def _supplied(
    name: str, machine_set: Object, pod: Object | None, nodes: Mapping[str, Object] | None
) -> Supplied:
    if (why := bodies.evicted(machine_set)) is not None:
        # A pod that its StatefulSet made meanwhile finds no node.
        still = pod is not None and bool(pods.node_of(pod)) and _alive(pod, nodes or {})
        detail = f"evicted ({why.scope}): {why.reason}{_fate(why, nodes or {})}"
        return Supplied(name=name, alive=still, detail=detail)
    if pod is None:
        return Supplied(name=name, alive=True, detail="no pod yet")
    node = pods.node_of(pod)
    if nodes is not None and not _alive(pod, nodes):
        return Supplied(name=name, alive=False, detail=_why_dead(pod, nodes))
    if not node:
        message = pods.condition(pod, "PodScheduled").get("message", "")
        return Supplied(name=name, alive=True, detail=f"pending: {message}" if message else "pending")
    if pods.is_ready(pod):
        return Supplied(name=name, alive=True, detail=f"node {node}")
    why_not = pods.waits_for(pod)
    return Supplied(name=name, alive=True, detail=f"starting on {node}{f': {why_not}' if why_not else ''}")


def _why_dead(pod: Object, nodes: Mapping[str, Object]) -> str:
    node = pods.node_of(pod)
    if pods.phase(pod) in ("Failed", "Succeeded"):
        message = (pod.get("status") or {}).get("message") or (pod.get("status") or {}).get("reason") or ""
        return f"its pod {pods.phase(pod).lower()}: {message}".rstrip(": ")
    if node and node not in nodes:
        return f"node {node} is gone"
    if node and not bodies.is_ready(nodes[node]):
        return f"node {node} is not ready"
    return "its pod is being deleted"


def _fate(why: EvictedNote, nodes: Mapping[str, Object]) -> str:
    """Describe the state of an evicted machine's node since."""
    if not why.node:
        return ""
    if why.node not in nodes:
        return f"; node {why.node} is gone"
    if nodes[why.node]["metadata"]["uid"] != why.node_uid:
        return f"; node {why.node} was replaced: release the machine to use the new one"
    return f"; node {why.node} is kept out"
