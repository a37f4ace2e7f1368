"""TLS on Kubernetes: the component reaches control plane and machines, and what it mounts is what they read."""

from __future__ import annotations

import base64
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import kubernetes_validate
import pytest

from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Object
from holdfast.errors import UnavailableError
from holdfast.settings import Settings
from holdfast.tls import Tls
from tests.agent.site import Patient
from tests.certificates import AGENT_NAME, Authority
from tests.e2e.waiting import free_ports, wait_for
from tests.kubernetes.components import pod_of, with_tls
from tests.kubernetes.container import Container
from tests.kubernetes.test_manifests import OVERLAY, VERSIONS, listed, rendered

ROSTER = {"metadata": {"name": "holdfast-machines", "uid": "u-1", "resourceVersion": "5"}}
MOUNTED = {"TLS_CERT": "tls.crt", "TLS_KEY": "tls.key", "TLS_CA": "ca.crt"}
NOWHERE = "http://127.0.0.1:1"
SECRET = "hunter-of-a-cluster"
AGENT_IP = "127.0.0.2"
"""No certificate carries it, as none carries the address of a pod."""


def machine(name: str = "m3") -> Object:
    """The StatefulSet that the driver sends."""
    [template] = with_tls("machine.yaml")
    return bodies.machine(name, template["template"], ROSTER, "holdfast-standby")


def control() -> Object:
    """The control plane's Deployment."""
    [found] = [each for each in with_tls("control.yaml") if each["kind"] == "Deployment"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid(version: str) -> None:
    """The patched ones, and the driver's body for a machine: strictly."""
    for body in [*with_tls(*listed()), machine()]:
        kubernetes_validate.validate(body, version, strict=True)


@pytest.mark.parametrize("body", [control(), machine()], ids=["control plane", "machine"])
def test_what_is_named_is_mounted_from_the_secret(body: Object) -> None:
    """Settings that there are, of files in a folder that is the Secret's, whole, private, and not the other one's."""
    [container] = pod_of(body)["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    mounted = {name: env[f"HOLDFAST_{name}"] for name in (*MOUNTED, "TLS_AGENT_NAME")}
    assert {name.lower() for name in mounted} <= set(Settings.model_fields)
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    [volume] = [each for each in pod_of(body)["volumes"] if each["name"] == "tls"]
    assert mounted == {name: f"{mount['mountPath']}/{file}" for name, file in MOUNTED.items()} | {
        "TLS_AGENT_NAME": AGENT_NAME
    }
    assert volume["secret"] == {"secretName": "holdfast-tls", "defaultMode": 0o400}
    assert mount["readOnly"] is True
    assert "subPath" not in mount, "what is mounted by subPath is never renewed"
    others = [each["mountPath"] for each in container["volumeMounts"] if each is not mount]
    assert not [path for path in others if mount["mountPath"].startswith(f"{path}/")]


def test_gateway_is_called_and_probed_by_tls() -> None:
    """By agents at its Service's name, by the kubelet without looking at names."""
    [agent] = pod_of(machine())["containers"]
    assert {"name": "HOLDFAST_GATEWAY_URL", "value": "https://holdfast:4300"} in agent["env"]
    [found] = pod_of(control())["containers"]
    assert found["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "gateway", "scheme": "HTTPS"}


def test_one_that_listens_everywhere_calls_itself_by_an_address_of_its_certificate() -> None:
    """No certificate is for 0.0.0.0."""
    assert Settings(host="0.0.0.0", tls_ca=Path("ca.crt")).gateway == "https://127.0.0.1:4300"
    assert Settings(host="10.0.0.5", tls_ca=Path("ca.crt")).gateway == "https://10.0.0.5:4300"


def test_overlay_with_the_component_renders(tmp_path: Path) -> None:
    """As in the example's comment; the example's own patches, which count items, still hit theirs."""
    shutil.copytree(OVERLAY.parents[1], tmp_path / "kubernetes")
    example = tmp_path / "kubernetes" / "overlays" / "example"
    text = (example / "kustomization.yaml").read_text()
    plain = "# components:\n#   - ../../components/tls\n"
    assert plain in text
    (example / "kustomization.yaml").write_text(text.replace(plain, plain.replace("# ", "").replace("#", "")))
    found = {(each["kind"], each["metadata"]["name"]): each for each in rendered(example)}
    for body in found.values():
        kubernetes_validate.validate(body, VERSIONS[-1], strict=True)
    [agent] = pod_of(found["PodTemplate", "holdfast-machine"])["containers"]
    assert agent["image"] == "registry.example.com/training:2026-11"
    [gateway] = pod_of(found["Deployment", "holdfast"])["containers"]
    for container in (agent, gateway):
        assert {"name": "HOLDFAST_TLS_AGENT_NAME", "value": AGENT_NAME} in container["env"]
        assert {"name": "tls", "mountPath": "/etc/holdfast-tls", "readOnly": True} in container[
            "volumeMounts"
        ]
    assert {"name": "HOLDFAST_KUBERNETES_MACHINES", "value": "128"} in gateway["env"]


class Pods:
    """The control plane's pod, with nothing but the gateway in it, and a machine's, as processes of this host."""

    def __init__(self, folder: Path) -> None:
        self.pki = Authority(folder / "pki")
        cert, key = self.pki.certify("site", "127.0.0.1", AGENT_NAME)
        self._secrets = {
            "holdfast": {"secret": SECRET.encode()},
            "holdfast-tls": {
                "tls.crt": cert.read_bytes(),
                "tls.key": key.read_bytes(),
                "ca.crt": self.pki.pem,
            },
        }
        self.port = free_ports()
        extra = {
            "HOLDFAST_PREFECT_API_URL": f"{NOWHERE}/api",
            "HOLDFAST_S3_ENDPOINT": NOWHERE,
            "HOLDFAST_DRIVER": "local",  # the node's kernel log is this host's
            "HOLDFAST_PRELOAD": "",
        }
        pod = pod_of(control())
        pod["containers"][0]["command"] = [
            *("python", "-P", "-m", "holdfast.deployments.gateway", "--home", "/var/lib/holdfast")
        ]
        for volume in pod["volumes"]:
            if volume.pop("persistentVolumeClaim", None):
                volume["emptyDir"] = {}
        own = {
            "HOLDFAST_PORT": str(self.port),
            "HOLDFAST_HOME": str(folder / "holdfast" / "volumes" / "state"),
            "HOLDFAST_MACHINE": "control",  # what marks its processes
        }
        self.gateway = self._container("holdfast", pod, folder, extra | own)
        # Only the name of the Service cannot be had here.
        there = {"HOLDFAST_GATEWAY_URL": f"https://127.0.0.1:{self.port}"}
        self.agent = self._container("m0-0", pod_of(machine("m0")), folder, extra | there)
        self.http = httpx.Client(
            base_url=there["HOLDFAST_GATEWAY_URL"],
            headers={"Authorization": f"Bearer {SECRET}"},
            **Tls(ca=self.pki.ca).http(),
        )

    def _container(self, name: str, spec: Object, folder: Path, extra: dict[str, str]) -> Container:
        pod = {"metadata": {"name": name, "namespace": "holdfast", "uid": f"uid-of-{name}"}, "spec": spec}
        (folder / name).mkdir()
        return Container(pod, AGENT_IP, folder / name, self._data, extra)

    def _data(self, kind: str, name: str) -> dict[str, str]:
        assert kind == "secrets"
        return {key: base64.b64encode(value).decode() for key, value in self._secrets[name].items()}

    def answers(self) -> bool:
        """Whether the gateway does."""
        assert not self.gateway.has_ended(), "see its container.log"
        try:
            return self.http.get("/readyz").is_success
        except httpx.HTTPError:
            return False

    def answers_without_tls(self) -> bool:
        """Whether the gateway does that too."""
        try:
            return bool(httpx.get(f"http://127.0.0.1:{self.port}/healthz").status_code)
        except httpx.HTTPError:
            return False

    def address(self) -> str:
        """The machine's, once it stands by."""
        assert not self.agent.has_ended(), "see its container.log"
        found = self.http.get("/v1/machines").json()
        return next((each["address"] for each in found if each["name"] == "m0"), "")


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Both started."""
    try:
        with socket.socket() as probe:
            probe.bind((AGENT_IP, 0))
    except OSError:
        pytest.skip(f"{AGENT_IP} is not an address of this host")
    made = Pods(tmp_path)
    try:
        made.gateway.start()
        made.agent.start()
        yield made
    finally:
        made.agent.destroy()
        made.gateway.destroy()


@pytest.mark.thorough
@pytest.mark.e2e
async def test_agent_and_gateway_of_the_patched_pods_meet_by_tls(pods: Pods) -> None:
    """Each with the environment and files of its pod; an agent by the name that all share, and no other way."""
    wait_for("the gateway answers", pods.answers)
    address = wait_for("the agent is registered", pods.address)
    assert address.startswith(f"{AGENT_IP}:")
    assert not pods.answers_without_tls()
    async with Patient(address, SECRET, tls=Tls(ca=pods.pki.ca, agent_name=AGENT_NAME)) as agent:
        assert (await agent.state()).machine == "m0"
    async with Patient(address, SECRET, tls=Tls(ca=pods.pki.ca)) as agent:
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            await agent.state()
    async with Patient(address, SECRET) as agent:
        with pytest.raises(UnavailableError):
            await agent.state()
