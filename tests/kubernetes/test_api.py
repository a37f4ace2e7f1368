"""The API server's answers, and their handling: a scripted server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from holdfast.drivers.base import NamesNodes
from holdfast.drivers.kubernetes import KubernetesDriver, bodies
from holdfast.drivers.kubernetes import api as module
from holdfast.drivers.kubernetes.api import Api, BudgetError, BusyError, ConflictError, GoneError
from holdfast.drivers.kubernetes.pods import Pods
from holdfast.errors import (
    HoldfastError,
    RefusedError,
    ReplacedUnitError,
    SettingsError,
    UnauthorizedError,
    UnavailableError,
    UnknownError,
)
from holdfast.models.machine import Scope
from tests.retries import by_hand

Answer = tuple[int, dict[str, str], Any]
READY: Answer = (200, {}, b"ok")


class Scripted:
    """A server that gives the answers of a list, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [(200, {}, {"ok": True})]
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                scripted.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
                answers = scripted.answers
                status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
                text = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def kubeconfig(self, path: Path) -> Path:
        """With a token, in namespace ``train``."""
        server = f"http://127.0.0.1:{self.http.server_address[1]}"
        context = {"cluster": "c", "user": "u", "namespace": "train"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "token-1"}}],
            "contexts": [{"name": "x", "context": context}],
        }
        path.write_text(json.dumps(content))
        return path


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.http.shutdown()
    scripted.http.server_close()


@pytest.fixture
def api(server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(module, "PATIENCE_S", 2.0)
    by_hand(monkeypatch)
    return Api.connect(str(server.kubeconfig(tmp_path / "kubeconfig")), "")


def status(code: int, message: str, **details: Any) -> Answer:
    return code, {}, {"kind": "Status", "code": code, "message": message, "details": details}


def test_kubeconfig_gives_server_and_namespace(api: Api, server: Scripted) -> None:
    """The settings that kubectl would use."""
    assert api.namespace == "train"
    assert api.get("/api/v1/nodes", labelSelector="a=b") == {"ok": True}
    method, path, _, _ = server.asked[0]
    assert (method, path) == ("GET", "/api/v1/nodes?labelSelector=a%3Db")


def test_patch_is_a_merge_patch(api: Api, server: Scripted) -> None:
    """null deletes, lists are replaced."""
    api.patch("/x", {"spec": {"taints": None}})
    method, _, headers, body = server.asked[0]
    assert (method, headers["Content-Type"]) == ("PATCH", "application/merge-patch+json")
    assert json.loads(body) == {"spec": {"taints": None}}


def test_busy_server_is_asked_again(api: Api, server: Scripted) -> None:
    """429 and 5xx pass; each try is a request."""
    server.answers = [
        status(429, "slow down"),
        status(503, "starting"),
        status(500, "etcd"),
        (200, {}, {"a": 1}),
    ]
    assert api.get("/x") == {"a": 1}
    assert len(server.asked) == 4


def test_server_that_stays_busy_is_unavailable(api: Api, server: Scripted) -> None:
    """After a bounded time, with the server's answer."""
    server.answers = [status(503, "still starting")]
    with pytest.raises(UnavailableError, match="still starting"):
        api.get("/x")
    assert len(server.asked) > 2


def test_server_that_is_not_there_is_unavailable(tmp_path: Path, server: Scripted, api: Api) -> None:
    """Refused connections are asked again too."""
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        api.get("/x")


@pytest.mark.parametrize("code", [200, 404])
def test_answer_that_breaks_off_is_asked_for_again(api: Api, server: Scripted, code: int) -> None:
    """A server that dies while it answers, well or not, has not answered."""
    server.answers = [(code, {"Content-Length": "500"}, b'{"a":'), (200, {}, {"a": 1})]
    assert api.get("/x") == {"a": 1}


def test_watch_whose_refusal_breaks_off_may_be_taken_up_again(api: Api, server: Scripted) -> None:
    """As one whose stream breaks."""
    server.answers = [(410, {"Content-Length": "500"}, b'{"mess')]
    with pytest.raises(BusyError, match="broke off"):
        next(api.watch("/x", resource_version="7", timeout_s=60))


def test_what_is_no_api_server_is_named(api: Api, server: Scripted) -> None:
    """A proxy's page of welcome, with status 200."""
    server.answers = [(200, {}, b"<html>Welcome")]
    with pytest.raises(UnavailableError, match=r"<html>Welcome.*Is it the API server\?"):
        api.get("/x")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, UnknownError),
        (409, ConflictError),
        (410, GoneError),
        (422, SettingsError),
    ],
)
def test_answers_that_stay_are_not_repeated(
    api: Api, server: Scripted, code: int, kind: type[HoldfastError]
) -> None:
    """Each is one error of ours with the server's words."""
    server.answers = [status(code, "because")]
    with pytest.raises(kind, match="because"):
        api.get("/x")
    assert len(server.asked) == 1


def test_denied_verb_is_named_with_where_it_is_granted(api: Api, server: Scripted) -> None:
    """The operator reads which right is missing, and which file has it."""
    message = 'nodes is forbidden: User "system:serviceaccount:train:holdfast" cannot list resource "nodes"'
    server.answers = [status(403, message), READY, status(403, message), READY]
    with pytest.raises(UnauthorizedError, match=r'cannot list resource "nodes".*rbac\.yaml'):
        api.get("/api/v1/nodes")


@pytest.mark.parametrize(
    "message",
    [
        'statefulsets.apps "m3" is forbidden: exceeded quota: gpus, requested: count/statefulsets.apps=1',
        'pods "m3-0" is forbidden: violates PodSecurity "restricted:latest": privileged',
        'admission webhook "validate.kyverno.svc" denied the request: label team is missing',
    ],
)
def test_what_admission_refuses_is_no_missing_right(api: Api, server: Scripted, message: str) -> None:
    """The operator is not sent to a role that has the verb already."""
    server.answers = [status(403, message)]
    with pytest.raises(RefusedError, match="403") as caught:
        api.create("/apis/apps/v1/namespaces/train/statefulsets", {})
    assert message in str(caught.value)
    assert "rbac.yaml" not in str(caught.value)
    assert len(server.asked) == 1


def test_machine_whose_container_does_not_start_shows_why(api: Api, server: Scripted) -> None:
    """Its pod has a node, and stays there for ever without its image."""
    named = {"name": "m3", "labels": {bodies.MACHINE: "m3"}, "uid": "u-1"}
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "train:2026"'}
    pod = {
        "metadata": named,
        "spec": {"nodeName": "gpu-17"},
        "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]},
    }
    node = {
        "metadata": {"name": "gpu-17"},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    server.answers = [(200, {}, {"items": [item]}) for item in ({"metadata": named}, pod, node)]
    (seen,) = KubernetesDriver(api).machines()
    assert seen.detail == 'starting on gpu-17: ImagePullBackOff: Back-off pulling image "train:2026"'


def test_what_keeps_a_pod_that_was_deleted_is_named(
    api: Api, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue's controller that is down removes no finalizer of its own: nothing else would say so."""
    monkeypatch.setattr(Pods, "_gone_within", lambda *_: False)
    kept = {"name": "m3-0", "uid": "u-1", "finalizers": ["kueue.x-k8s.io/managed"]}
    here: Answer = (200, {}, {"items": [{"metadata": kept}]})
    server.answers = [here, (200, {}, {}), here]
    with pytest.raises(UnavailableError, match=r"pods m3-0 are still there.*kueue\.x-k8s\.io/managed"):
        Pods(api, 1.0).wait_gone("m3")


def test_server_that_starts_denies_nothing_for_good(api: Api, server: Scripted) -> None:
    """Before it knows its roles it refuses every user; it is asked again, also when it became ready just then."""
    server.answers = [
        status(403, "who"),
        status(403, "not ready"),
        status(403, "who"),
        READY,
        (200, {}, {"a": 1}),
    ]
    assert api.get("/x") == {"a": 1}


def test_budget_is_distinguished_from_a_busy_server(api: Api, server: Scripted) -> None:
    """Both are 429: only a busy server is asked again at once."""
    cause = {
        "reason": "DisruptionBudget",
        "message": "The disruption budget b needs 3 healthy pods and has 3",
    }
    server.answers = [status(429, "Cannot evict pod", causes=[cause])]
    with pytest.raises(BudgetError, match="budget b needs 3"):
        api.create("/api/v1/namespaces/train/pods/m0-0/eviction", {})
    assert len(server.asked) == 1


def test_deletion_names_the_pod_by_uid(api: Api, server: Scripted) -> None:
    """So that one which has its name by now is left alone."""
    pod = {"metadata": {"name": "m3-0", "uid": "u-2"}}
    Pods(api, 1.0).delete(pod, 0)
    method, path, _, body = server.asked[0]
    assert (method, path) == ("DELETE", "/api/v1/namespaces/train/pods/m3-0")
    options = json.loads(body)
    assert options["preconditions"] == {"uid": "u-2"}
    # DeleteOptions have no schema of their own; an Eviction carries them.
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {}, "deleteOptions": options}
    kubernetes_validate.validate(eviction, "1.37", strict=True)


def test_older_server_gets_the_older_eviction(api: Api, server: Scripted) -> None:
    """policy/v1 first; the one that was taken is used from then on."""
    pod = {"metadata": {"name": "m3-0", "namespace": "train", "uid": "u-2"}}
    here: Answer = (200, {}, {"items": [pod]})
    server.answers = [status(404, "no such version"), here, (201, {}, {}), (201, {}, {})]
    pods = Pods(api, 1.0)
    pods.evict(pod)
    pods.evict(pod)
    versions = [json.loads(body)["apiVersion"] for method, _, _, body in server.asked if method == "POST"]
    assert versions == ["policy/v1", "policy/v1beta1", "policy/v1beta1"]


@pytest.mark.parametrize("uids", [[], ["u-3"]])
def test_eviction_of_a_pod_that_is_gone_takes_no_right_to_read_it(
    api: Api, server: Scripted, uids: list[str]
) -> None:
    """Others were faster, or the answer of the first try was lost: looked for by a list, which the role allows."""
    pod = {"metadata": {"name": "m3-0", "namespace": "train", "uid": "u-2"}}
    found = [{"metadata": {"name": "m3-0", "uid": uid}} for uid in uids]
    server.answers = [status(404, 'pods "m3-0" not found'), (200, {}, {"items": found})]
    Pods(api, 1.0).evict(pod)
    assert [(method, path) for method, path, _, _ in server.asked] == [
        ("POST", "/api/v1/namespaces/train/pods/m3-0/eviction"),
        ("GET", "/api/v1/namespaces/train/pods?fieldSelector=metadata.name%3Dm3-0"),
    ]


def test_machine_whose_deletion_was_answered_in_vain_is_retired(
    api: Api, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try finds nothing to delete, which is what was asked for."""
    monkeypatch.setattr(Pods, "wait_gone", lambda *_: None)
    server.answers = [
        (200, {}, {"items": [{"metadata": {"name": "m3"}}]}),
        status(503, "the answer was lost"),
        status(404, 'statefulsets.apps "m3" not found'),
        (200, {}, {"items": []}),
    ]
    KubernetesDriver(api).retire("m3")
    assert [method for method, *_ in server.asked] == ["GET", "DELETE", "DELETE", "GET"]


def test_a_machine_that_had_another_pod_is_not_released_for_what_it_was(api: Api, server: Scripted) -> None:
    """Its second pod was evicted: a release of the first one changes nothing."""
    why = bodies.EvictedNote(scope=Scope.CLUSTER, reason="Xid 79", at=1.0, node="gpu-17", pod_uid="u-2")
    found = {"metadata": {"name": "m3", **bodies.intent_to_evict(why)["metadata"]}}
    server.answers = [(200, {}, {"items": [found]})]
    with pytest.raises(ReplacedUnitError, match="m3"):
        KubernetesDriver(api).release("m3", "life@u-1")
    assert [method for method, *_ in server.asked] == ["GET"]


def test_host_of_an_evicted_machine_is_the_node_that_it_was_on(api: Api, server: Scripted) -> None:
    """As its StatefulSet notes it; of one in service none is named."""
    why = bodies.EvictedNote(scope=Scope.CLUSTER, reason="Xid 79", at=1.0, node="gpu-17", node_uid="u-3")
    sets = [
        {"metadata": {"name": "m3", "annotations": {bodies.EVICTED: why.model_dump_json()}}},
        {"metadata": {"name": "m4"}},
    ]
    server.answers = [(200, {}, {"items": sets})]
    driver = KubernetesDriver(api)
    assert isinstance(driver, NamesNodes)
    assert [driver.node_of(name) for name in ("m3", "m4")] == ["gpu-17", ""]


def test_watch_yields_events_and_raises_what_the_stream_says(api: Api, server: Scripted) -> None:
    """An ERROR event of 410 is as good as the status."""
    lines = [
        {"type": "ADDED", "object": {"metadata": {"name": "a"}}},
        {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}},
    ]
    server.answers = [(200, {}, b"\n".join(json.dumps(line).encode() for line in lines) + b"\n")]
    events = api.watch("/x", resource_version="7", timeout_s=60)
    assert next(events)["object"]["metadata"]["name"] == "a"
    with pytest.raises(GoneError, match="too old"):
        next(events)
    assert "resourceVersion=7" in server.asked[0][1]
    assert "allowWatchBookmarks=true" in server.asked[0][1]


def test_watch_of_a_busy_server_says_when_to_come_back(api: Api, server: Scripted) -> None:
    """Retry-After goes to the watcher."""
    server.answers = [(429, {"Retry-After": "1.5"}, {"message": "busy"})]
    with pytest.raises(BusyError) as caught:
        next(api.watch("/x", resource_version="7", timeout_s=60))
    assert caught.value.after_s == 1.5


def test_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    """With the setting that names it."""
    with pytest.raises(SettingsError, match=r"HOLDFAST_KUBERNETES_CONFIG.*nowhere"):
        Api.connect(str(tmp_path / "nowhere"), "")
