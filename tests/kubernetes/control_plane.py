"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, in a folder of their own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.drivers.kubernetes.api import Api
from tests.e2e.waiting import free_ports, wait_for

VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
UP_S = 120.0
NODE_GRACE_S = 20
"""A node whose kubelet is silent for so long is not ready any more."""
_libc = ctypes.CDLL(None)


def folder() -> Path:
    """Where ``build.sh`` puts the programs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "holdfast" / f"kubernetes-{VERSION}"


def missing() -> str:
    """Missing programs, and how to get them; empty: none is missing."""
    absent = [name for name in PROGRAMS if not (folder() / name).exists()]
    absent += [name for name in ("etcd", "openssl") if shutil.which(name) is None]
    return f"no {', '.join(absent)}: run tests/kubernetes/build.sh" if absent else ""


class ControlPlane:
    """A running one. ``kubeconfig`` is an administrator's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kubeconfig = root / "kubeconfig"
        self._token = secrets.token_hex(16)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        first = free_ports(5)
        self._etcd, self._peer, self._api, self._manager, self._scheduler = range(first, first + 5)

    @classmethod
    @contextmanager
    def up(cls, root: Path) -> Iterator[ControlPlane]:
        """Start all four; stopped at the end."""
        plane = cls(root)
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()

    def api(self, namespace: str = "default") -> Api:
        """The administrator's."""
        return Api.connect(str(self.kubeconfig), namespace)

    def start(self) -> None:
        """Start them in order, and wait until they serve."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._keys()
        self.write_kubeconfig(self.kubeconfig, self._token)
        self._start_etcd()
        self.start_apiserver()
        certificates = self.root / "apiserver"
        common = (
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--port=0",
        )
        self._spawn(
            "kube-controller-manager",
            *common,
            f"--secure-port={self._manager}",
            f"--cert-dir={self.root / 'manager'}",
            f"--service-account-private-key-file={self.root / 'sa.key'}",
            f"--root-ca-file={certificates / 'apiserver.crt'}",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={NODE_GRACE_S}s",
        )
        self._spawn(
            "kube-scheduler",
            *common,
            f"--secure-port={self._scheduler}",
            f"--cert-dir={self.root / 'scheduler'}",
        )
        for port, name in ((self._manager, "controller manager"), (self._scheduler, "scheduler")):
            self._wait(name, f"https://127.0.0.1:{port}/healthz")
        accounts = f"https://127.0.0.1:{self._api}/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("default service account", accounts)

    def start_apiserver(self) -> None:
        """Start (again) the API server, on its own port."""
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._api}",
            "--insecure-port=0",
            f"--cert-dir={self.root / 'apiserver'}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.root / 'tokens.csv'}",
            "--service-account-issuer=https://holdfast.test",
            f"--service-account-key-file={self.root / 'sa.pub'}",
            f"--service-account-signing-key-file={self.root / 'sa.key'}",
        )
        self._wait("API server", f"https://127.0.0.1:{self._api}/readyz")

    def kill(self, name: str) -> None:
        """SIGKILL one of them."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop all, last started first."""
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.root / "etcd", ignore_errors=True)

    def write_kubeconfig(self, path: Path, token: str, namespace: str = "default") -> None:
        """A kubeconfig for the holder of ``token``."""
        cluster = {
            "server": f"https://127.0.0.1:{self._api}",
            "certificate-authority": str(self.root / "apiserver" / "apiserver.crt"),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [
                {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": namespace}}
            ],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._spawn(
            "etcd",
            *(
                "--data-dir",
                str(self.root / "etcd"),
                "--listen-client-urls",
                client,
                "--advertise-client-urls",
                client,
            ),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"default={peer}",
            ),
            # Nothing here survives the test.
            "--unsafe-no-fsync",
        )
        self._wait("etcd", f"{client}/health")

    def _keys(self) -> None:
        key, public = str(self.root / "sa.key"), str(self.root / "sa.pub")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run(
            ["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True
        )
        (self.root / "tokens.csv").write_text(f'{self._token},admin,1,"system:masters"\n')

    def _spawn(self, name: str, *arguments: str) -> None:
        program = name if name == "etcd" else str(folder() / name)
        with (self.root / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
            )

    def _wait(self, what: str, url: str) -> None:
        def answers() -> bool:
            died = [name for name, process in self._processes.items() if process.poll() is not None]
            assert not died, f"{died} ended: see {self.root}"
            return _answers(url, self._token)

        wait_for(f"{what} answers", answers, UP_S)


def _answers(url: str, token: str) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl._create_unverified_context()  # whether it lives is all that is asked
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _die_with_parent() -> None:
    """In the child before exec: none outlives a test run that was killed."""
    _libc.prctl(1, signal.SIGKILL)
