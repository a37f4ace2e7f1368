"""Bodies: valid for every current schema, and nodes that come back as they were."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Object
from holdfast.drivers.kubernetes.bodies import EvictedNote
from holdfast.errors import SettingsError
from holdfast.models.machine import Scope
from tests.kubernetes.cluster import manifests

VERSIONS = ("1.28", "1.31", "1.34", "1.37")
ROSTER = {
    "metadata": {"name": "holdfast-machines", "uid": "u-1", "resourceVersion": "5"},
    "data": {"next": "3"},
}
POD = {"metadata": {"name": "m3-0", "namespace": "train", "uid": "u-2"}, "spec": {"nodeName": "n1"}}
WHY = EvictedNote(scope=Scope.CLUSTER, reason="Xid 79", at=1.0, node="n1", node_uid="u-3", pod_uid="p-1")


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as the API server applies a merge patch."""
    if not isinstance(patch, dict):
        return patch
    base = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = merged(base.get(key), value)
    return base


def machine(**changes: Any) -> Object:
    [template] = manifests("machine.yaml")
    return bodies.machine("m3", merged(template["template"], changes), ROSTER, "holdfast-standby")


def node(**spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "u-3", "resourceVersion": "1", "labels": {"zone": "a"}},
        "spec": spec,
    }


def sent() -> dict[str, Object]:
    """Every body that the driver sends; of patches, what they make of an object."""
    stateful_set = machine()
    out = bodies.node_taken_out(node(), "m3", Scope.CLUSTER)
    assert out is not None
    taken = merged(node(), out)
    back = bodies.node_given_back(taken, "m3")
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", **ROSTER}
    evicted = merged(stateful_set, bodies.intent_to_evict(WHY))
    return {
        "machine": stateful_set,
        "evicted machine": evicted,
        "parked machine": merged(evicted, bodies.parked()),
        "machine in service": merged(merged(evicted, bodies.parked()), bodies.in_service()),
        "machine on its node": merged(evicted, bodies.in_service(evicted, "n1")),
        "node taken out": taken,
        "node given back": merged(taken, back),
        "roster": merged(config_map, bodies.taken_numbers(3, 2, "5")),
        "eviction": bodies.eviction(POD, "policy/v1", 1),
        "eviction of an old server": {**bodies.eviction(POD, "policy/v1beta1", 1), "apiVersion": "policy/v1"},
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("what", list(sent()))
def test_body_is_valid(what: str, version: str) -> None:
    """Strictly: no field that the schema does not have."""
    kubernetes_validate.validate(sent()[what], version, strict=True)


def test_control_a_misspelt_field_is_not_valid() -> None:
    """The validation above can fail."""
    body = machine()
    body["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body, "1.34", strict=True)


def test_machine_is_its_template_with_a_name() -> None:
    """Labels, owner, name in the environment, priority; the rest is the template's."""
    body = machine()
    pod = body["spec"]["template"]
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert pod["metadata"]["labels"]["holdfast.dev/machine"] == "m3"
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "holdfast-machine"
    assert pod["spec"]["containers"][0]["env"][0] == {"name": "HOLDFAST_MACHINE", "value": "m3"}
    assert pod["spec"]["priorityClassName"] == "holdfast-standby"
    assert pod["spec"]["containers"][0]["image"] == "holdfast-agent:latest"
    assert body["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_template_is_not_changed() -> None:
    """The next machine is made from the same one."""
    [template] = manifests("machine.yaml")
    before = copy.deepcopy(template)
    bodies.machine("m3", template["template"], ROSTER, "x")
    assert template == before


def test_every_alternative_of_the_templates_affinity_keeps_off_evicted_nodes() -> None:
    """Terms are alternatives: one without it would let the machine back on the node."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = machine(spec={"affinity": {"nodeAffinity": required}})["spec"]["template"]["spec"]
    made = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    off = {"key": "holdfast.dev/evicted", "operator": "DoesNotExist"}
    assert [term["matchExpressions"] for term in made] == [[*term["matchExpressions"], off] for term in terms]


def test_released_machine_prefers_the_node_that_was_repaired() -> None:
    """Beside what the template prefers; of an earlier release nothing is left, and evicted nodes stay excluded."""
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    terms = [{"weight": 1, "preference": zone}]
    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    now = machine(spec={"affinity": {"nodeAffinity": {kind: terms}}})
    for name in ("n1", "n2"):
        now = merged(now, bodies.in_service(now, name))
    affinity = now["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (first, second) = affinity[kind]
    assert first == terms[0]
    assert second["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "In", "values": ["n2"]}
    ]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert "holdfast.dev/evicted" in str(required)


def test_template_without_container_is_refused() -> None:
    """By name."""
    with pytest.raises(SettingsError, match="'holdfast-machine-h100' has no container"):
        bodies.check_template({"template": {"spec": {}}}, "holdfast-machine-h100")


def test_evicted_machine_is_read_back() -> None:
    """Writing and reading are inverse."""
    assert bodies.evicted(merged(machine(), bodies.intent_to_evict(WHY))) == WHY
    back = merged(merged(machine(), bodies.intent_to_evict(WHY)), bodies.in_service())
    assert bodies.evicted(back) is None
    assert back["spec"]["template"]["spec"].get("nodeSelector", {}) == {}


taints = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from("xyz"), "effect": st.just("NoSchedule")}), max_size=3
)
acts = st.lists(st.tuples(st.sampled_from(["m1", "m2", "m3"]), st.sampled_from(list(Scope))), max_size=6)


@given(taints, st.booleans(), acts)
def test_node_comes_back_as_an_administrator_left_it(
    others: list[Object], cordoned: bool, evictions: list[tuple[str, Scope]]
) -> None:
    """Any evictions of any scope, each given back once: taints, labels and cordon are as before."""
    spec: Object = {}
    if others:
        spec["taints"] = others
    if cordoned:
        spec["unschedulable"] = True
    now = node(**spec)
    before = copy.deepcopy(now)
    for name, scope in evictions:
        patch = bodies.node_taken_out(now, name, scope)
        now = merged(now, patch or {})
        assert bodies.node_taken_out(now, name, scope) is None, "repeated, it changes nothing"
    if any(scope is Scope.CLUSTER for _, scope in evictions):
        assert now["spec"]["unschedulable"] is True
        assert [taint["key"] for taint in now["spec"]["taints"]].count("holdfast.dev/evicted") == 1
    for index, name in enumerate(dict.fromkeys(name for name, _ in evictions)):
        left = len({name for name, _ in evictions}) - index - 1
        now = merged(now, bodies.node_given_back(now, name) or {})
        assert bodies.node_given_back(now, name) is None
        assert ("holdfast.dev/evicted" in now["metadata"]["labels"]) is (left > 0)
    now["metadata"].pop("annotations", None)
    assert now == before


def test_nodes_that_others_take_away_are_reported() -> None:
    """A cordon that is not ours, and the taints of autoscalers and clouds; an eviction of ours is none."""
    assert bodies.leaves(node()) == ""
    assert bodies.leaves(node(unschedulable=True)) == "node n1 is cordoned"
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1700000000", "effect": "NoSchedule"}
    assert "autoscaler" in bodies.leaves(node(taints=[taint]))
    assert bodies.leaves(node(taints=[taint | {"effect": "PreferNoSchedule"}])) == ""
    former = {"key": "karpenter.sh/disruption", "value": "disrupting", "effect": "NoSchedule"}
    assert "Karpenter" in bodies.leaves(node(taints=[former]))
    azure = {"key": "remediator.kubernetes.azure.com/unschedulable", "effect": "NoSchedule"}
    assert "AKS" in bodies.leaves(node(taints=[azure]))
    assert bodies.leaves(node(taints=[{"key": "gpu", "effect": "NoSchedule"}])) == ""
    ours = merged(node(), bodies.node_taken_out(node(), "m3", Scope.CLUSTER) or {})
    assert bodies.leaves(ours) == ""
    cordoned = node(unschedulable=True)
    both = merged(cordoned, bodies.node_taken_out(cordoned, "m3", Scope.CLUSTER) or {})
    assert bodies.leaves(both) == "node n1 is cordoned"


def given_back_by_hand(taken: Object) -> Object:
    """As docs/install-kubernetes.md has it: kubectl uncordon, and the taint and the label away; annotations stay."""
    back: Object = merged(
        taken,
        {
            "metadata": {"labels": {"holdfast.dev/evicted": None}},
            "spec": {"unschedulable": None, "taints": None},
        },
    )
    return back


def test_node_that_was_given_back_by_hand_is_drained_as_any_other() -> None:
    """The cordon of `kubectl drain` is not ours, is seen, and stays when the machine is released later."""
    taken = merged(node(), bodies.node_taken_out(node(), "m3", Scope.CLUSTER) or {})
    drained = merged(given_back_by_hand(taken), {"spec": {"unschedulable": True}})
    assert bodies.leaves(drained) == "node n1 is cordoned"
    released = merged(drained, bodies.node_given_back(drained, "m3") or {})
    assert released["spec"].get("unschedulable") is True
    # Evicted there again, and repaired: the administrator's cordon stays.
    again = merged(drained, bodies.node_taken_out(drained, "m7", Scope.CLUSTER) or {})
    assert bodies.leaves(again) == "node n1 is cordoned"
    back = merged(again, bodies.node_given_back(again, "m7") or {})
    assert back["spec"] == {"unschedulable": True}
    assert back["metadata"]["labels"] == {"zone": "a"}


def test_labels_of_a_node_say_where_it_is() -> None:
    """Those of NVIDIA, clouds and the site's own; of labels that are no location nothing."""
    labels = {
        "nvidia.com/gpu.clique": "7b6a3d1e-b2a4-4c0e-9a53-1c2b0c6a6a11.32766",
        "topology.kubernetes.io/zone": "us-east-1a",
        "topology.holdfast.dev/rack": "r12",
        "kubernetes.io/hostname": "n1",
    }
    assert bodies.location({"metadata": {"name": "n1", "labels": labels}}) == {
        "nvlink": "7b6a3d1e-b2a4-4c0e-9a53-1c2b0c6a6a11.32766",
        "zone": "us-east-1a",
        "rack": "r12",
    }
    assert bodies.location({"metadata": {"name": "n1"}}) == {}
    assert bodies.location({"metadata": {"labels": {"topology.holdfast.dev/Rack 4": "r"}}}) == {}
