"""Request bodies for the API server: pure functions from names and templates to bodies.

A **machine** is a StatefulSet of one replica, called like the machine, and its pod. Everything about it lies in that
StatefulSet's metadata, so that any process finds the same state. All of them are owned by one ConfigMap, the
**roster**, which also keeps the next free number: delete it, and the garbage collector takes all machines away.

Why StatefulSets of one: a machine must come and go alone (the middle one of a StatefulSet of many cannot be taken
out), never run twice under its name (a Deployment or Job starts the next pod while the last one still ends, or lies on
a node that does not answer), come back under its name when its pod was deleted by others, count in disruption
budgets with ``maxUnavailable``, and be there on every version of Kubernetes, without operators.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from holdfast.drivers.kubernetes.api import Object
from holdfast.errors import SettingsError
from holdfast.models import location as locations
from holdfast.models.base import Frozen
from holdfast.models.incarnation import ENV_UNIT
from holdfast.models.machine import Scope

DOMAIN = "holdfast.dev"
MACHINE = f"{DOMAIN}/machine"
"""Label of StatefulSets and pods: the machine's name."""
ROLE = f"{DOMAIN}/role"
"""Label ``machine`` of StatefulSets and pods: they are machines of Holdfast."""
IN_SERVICE = f"{DOMAIN}/in-service"
"""Label ``true`` of pods, until their machine is taken out: the budget of the base counts these."""
EVICTED = f"{DOMAIN}/evicted"
"""Annotation of a StatefulSet (why and when); label and taint of a node (scope)."""
EVICTED_POD = f"{DOMAIN}/evicted-pod"
"""Annotation of a StatefulSet: uid of the pod that was evicted. By itself: releases before refuse fields of EVICTED."""
EVICTED_MACHINES = f"{DOMAIN}/evicted-machines"
"""Annotation of a node: whose eviction keeps it out."""
CORDONED = f"{DOMAIN}/cordoned"
"""Annotation of a node: Holdfast cordoned it, not an administrator."""
PARKED = f"{DOMAIN}/parked"
"""Node selector that no node satisfies: a pod that is made again while its machine is being taken out."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ROSTER = "holdfast-machines"
SERVICE = "holdfast-machines"
"""The headless service that gives pods their names."""
SELECTOR = f"{ROLE}=machine"


class EvictedNote(Frozen):
    """Content of a StatefulSet's annotation :data:`EVICTED`."""

    scope: Scope
    reason: str
    at: float
    """Seconds since the Unix epoch."""
    node: str = ""
    """Where the machine was."""
    node_uid: str = ""
    """Distinguishes the node from a replacement of the same name."""
    pod_uid: str = ""
    """The unit that was evicted (:mod:`holdfast.models.incarnation`); empty where there was no pod."""


def machine(name: str, template: Object, roster: Object, priority_class: str) -> Object:
    """Return the StatefulSet of one machine.

    Args:
        name: the machine's, which the container finds in ``HOLDFAST_MACHINE``.
        template: ``template`` of the PodTemplate that machines are made from.
        roster: the ConfigMap that owns it.
        priority_class: of its pod; empty: that of the template.
    """
    labels = {ROLE: "machine", MACHINE: name}
    pod = copy.deepcopy(template)
    metadata = pod.setdefault("metadata", {})
    metadata.pop("creationTimestamp", None)
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels, IN_SERVICE: "true"}
    spec = pod["spec"]
    if priority_class:
        spec["priorityClassName"] = priority_class
    _keep_off_evicted(spec)
    for container in spec["containers"]:
        ours: list[Object] = [
            {"name": "HOLDFAST_MACHINE", "value": name},
            {"name": ENV_UNIT, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ]
        names = {each["name"] for each in ours}
        # First: what comes later may refer to it.
        container["env"] = [
            *ours,
            *(each for each in container.get("env") or [] if each["name"] not in names),
        ]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner(roster)]},
        "spec": {
            "serviceName": SERVICE,
            "replicas": 1,
            "selector": {"matchLabels": {MACHINE: name}},
            # A pod is replaced when the driver requests it, never because the StatefulSet was edited.
            "updateStrategy": {"type": "OnDelete"},
            "template": pod,
        },
    }


def owner(roster: Object) -> Object:
    """Return the reference by which the roster owns a machine."""
    metadata = roster["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}


def taken_numbers(first: int, n: int, version: str) -> Object:
    """Return a patch of the roster: numbers up to ``first + n`` are given, if none was taken since ``version``."""
    return {"metadata": {"resourceVersion": version}, "data": {"next": str(first + n)}}


def intent_to_evict(why: EvictedNote) -> Object:
    """Patch of a StatefulSet: it is being taken out, and a pod that is made again finds no node."""
    return {
        "metadata": {
            "annotations": {
                EVICTED: why.model_dump_json(exclude={"pod_uid"}),
                EVICTED_POD: why.pod_uid or None,
            }
        },
        "spec": {"template": {"spec": {"nodeSelector": {PARKED: "true"}}}},
    }


def out_of_service(uid: str) -> Object:
    """Patch of the pod ``uid`` whose machine is taken out: what Holdfast removes, its own budget does not keep."""
    return {"metadata": {"uid": uid, "labels": {IN_SERVICE: None}}}


def parked() -> Object:
    """Patch of a StatefulSet: no pod."""
    return {"spec": {"replicas": 0}}


def in_service(machine_set: Object | None = None, node: str = "") -> Object:
    """Patch of a StatefulSet: out no more, one pod.

    On ``node`` if it has room, else on any: what was repaired there is checked there before a job has it.
    """
    spec: Object = {"nodeSelector": {PARKED: None}}
    if machine_set is not None and node:
        affinity = machine_set["spec"]["template"]["spec"].get("affinity") or {}
        terms = (affinity.get("nodeAffinity") or {}).get(_PREFERRED) or []
        others = [term for term in terms if "matchFields" not in term["preference"]]
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        wanted = {"weight": 100, "preference": {"matchFields": [here]}}
        spec["affinity"] = {"nodeAffinity": {_PREFERRED: [*others, wanted]}}
    return {
        "metadata": {"annotations": {EVICTED: None, EVICTED_POD: None}},
        "spec": {"replicas": 1, "template": {"spec": spec}},
    }


def eviction(pod: Object, version: str, grace_s: int) -> Object:
    """Return a pod's ``eviction``, of ``policy/v1`` or ``policy/v1beta1``; refused if the pod is another by now."""
    return {
        "apiVersion": version,
        "kind": "Eviction",
        "metadata": {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]},
        "deleteOptions": {"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod["metadata"]["uid"]}},
    }


def evicted(machine_set: Object) -> EvictedNote | None:
    """Return why a StatefulSet's machine is out of service; None: it is not."""
    annotations = machine_set["metadata"].get("annotations") or {}
    if not (note := annotations.get(EVICTED)):
        return None
    return EvictedNote.model_validate_json(note).model_copy(
        update={"pod_uid": annotations.get(EVICTED_POD) or ""}
    )


def node_taken_out(node: Object, name: str, scope: Scope) -> Object | None:
    """Patch of a node that keeps all (scope ``cluster``) or only our machines (scope ``job``) off it.

    None: it is so already.
    """
    metadata, spec = node["metadata"], node["spec"]
    annotations, labels = _own_annotations(node), metadata.get("labels") or {}
    machines = _machines(annotations)
    both = Scope.CLUSTER if Scope.CLUSTER in (scope, labels.get(EVICTED)) else scope
    if name in machines and labels.get(EVICTED) == both:
        return None
    new: dict[str, Any] = {
        EVICTED_MACHINES: json.dumps(sorted({*machines, name})),
        CORDONED: annotations.get(CORDONED),
    }
    patch: Object = {
        "metadata": {"resourceVersion": metadata["resourceVersion"], "labels": {EVICTED: both.value}}
    }
    if both is Scope.CLUSTER:
        if not spec.get("unschedulable"):
            new[CORDONED] = "true"
        patch["spec"] = {
            "unschedulable": True,
            "taints": [*_others(spec), {"key": EVICTED, "value": both.value, "effect": "NoSchedule"}],
        }
    patch["metadata"]["annotations"] = new
    return patch


def node_given_back(node: Object, name: str) -> Object | None:
    """Patch of a node whose machine ``name`` was repaired; what an administrator did stays. None: nothing to do."""
    metadata, spec = node["metadata"], node["spec"]
    annotations = metadata.get("annotations") or {}
    machines = _machines(annotations)
    if name not in machines:
        return None
    left = sorted(set(machines) - {name})
    version = {"resourceVersion": metadata["resourceVersion"]}
    if left:
        return {"metadata": {**version, "annotations": {EVICTED_MACHINES: json.dumps(left)}}}
    patch: Object = {
        "metadata": {
            **version,
            "annotations": {EVICTED_MACHINES: None, CORDONED: None},
            "labels": {EVICTED: None},
        },
        "spec": {"taints": _others(spec) or None},
    }
    if _own_annotations(node).get(CORDONED):
        patch["spec"]["unschedulable"] = None
    return patch


LEAVING = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler removes the node",
    "karpenter.sh/disrupted": "Karpenter replaces the node",
    "karpenter.sh/disruption": "Karpenter replaces the node",
    "cloud.google.com/impending-node-termination": "Compute Engine stops the node",
    "node.cloudprovider.kubernetes.io/shutdown": "the cloud shut the node down",
    "aws-node-termination-handler/spot-itn": "EC2 takes the Spot instance away",
    "aws-node-termination-handler/scheduled-maintenance": "EC2 maintains the instance",
    "aws-node-termination-handler/asg-lifecycle-termination": "the Auto Scaling group terminates the instance",
    "remediator.kubernetes.azure.com/unschedulable": "AKS drains the node",
}
"""Taints of nodes that will be gone soon, by key, and what they mean."""


LOCATION_LABELS = {
    "nvidia.com/gpu.clique": "nvlink",
    "topology.k8s.aws/network-node-layer-3": "switch",
    "topology.k8s.aws/network-node-layer-2": "switch-2",
    "topology.k8s.aws/network-node-layer-1": "switch-3",
    "cloud.google.com/gce-topology-subblock": "rack",
    "cloud.google.com/gce-topology-block": "block",
    "topology.kubernetes.io/zone": "zone",
}
"""Labels that NVIDIA's feature discovery and clouds put on nodes, and the level that each is of."""
LOCATION_PREFIX = f"topology.{DOMAIN}/"
"""Labels of a site's own: ``topology.holdfast.dev/rack: r12``."""


def leaves(node: Object) -> str:
    """Return why a node is about to be taken away by others than Holdfast; empty: it is not.

    A cordon is the first act of ``kubectl drain``.
    """
    metadata, spec = node["metadata"], node["spec"]
    for taint in spec.get("taints") or []:
        if taint["key"] in LEAVING and taint.get("effect") in ("NoSchedule", "NoExecute"):
            return f"node {metadata['name']}: {LEAVING[taint['key']]}"
    if not spec.get("unschedulable") or _own_annotations(node).get(CORDONED):
        return ""
    return f"node {metadata['name']} is cordoned"


def location(node: Object) -> dict[str, str]:
    """Return the failure domains that a node's labels name, by level."""
    labels = node["metadata"].get("labels") or {}
    found = {level: str(labels[label]) for label, level in LOCATION_LABELS.items() if labels.get(label)}
    found |= {
        label.removeprefix(LOCATION_PREFIX): str(value)
        for label, value in labels.items()
        if label.startswith(LOCATION_PREFIX) and value
    }
    return locations.usable(found)


def is_ready(node: Object) -> bool:
    """Return whether a node's kubelet reports the node as ready."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def check_template(template: Object, name: str) -> Object:
    """Return the ``template`` of a PodTemplate, if machines can be made from it.

    Raises:
        SettingsError: it has no container.
    """
    found: Object = template.get("template") or {}
    if not (found.get("spec") or {}).get("containers"):
        raise SettingsError(
            f"PodTemplate {name!r} has no container: expected the one that runs holdfast.agent."
        )
    return found


def _keep_off_evicted(spec: Object) -> None:
    """Require, in every term that the template has, nodes that no eviction of either scope marks."""
    off = {"key": EVICTED, "operator": "DoesNotExist"}
    node_affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = node_affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    # Terms are alternatives: each must ask for it.
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), off]} for term in terms
    ]


def _own_annotations(node: Object) -> Mapping[str, str]:
    """Return a node's annotations if it is marked as evicted.

    Else a person gave it back by hand, by its label and taint: what Holdfast annotated is of the past.
    """
    metadata, taints = node["metadata"], node["spec"].get("taints") or []
    marked = EVICTED in (metadata.get("labels") or {}) or any(each["key"] == EVICTED for each in taints)
    found: Mapping[str, str] = metadata.get("annotations") or {}
    return found if marked else {}


def _machines(annotations: Mapping[str, str]) -> list[str]:
    found: list[str] = json.loads(annotations.get(EVICTED_MACHINES) or "[]")
    return found


def _others(spec: Object) -> list[Object]:
    return [taint for taint in spec.get("taints") or [] if taint["key"] != EVICTED]
