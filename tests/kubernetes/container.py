"""The work of a kubelet and a container runtime for one pod, with processes of this host instead of containers.

Of the pod's first container: command and arguments, environment (values, ``$(NAME)``, fields of the pod, keys of
secrets, whole config maps), volumes of kind ``emptyDir`` and ``secret``. Where a volume is mounted is a folder of this
host, so mount paths in commands and environment are rewritten; everything else is as in the pod.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.drivers import processes
from holdfast.drivers.kubernetes.api import Object
from holdfast.paths import ENV_MACHINE_DIR, machine_dir, shm_root

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_HOME = "HOLDFAST_HOME"

Data = Callable[[str, str], Mapping[str, str]]
"""``data`` of a Secret or ConfigMap by kind (``secrets``, ``configmaps``) and name."""


class Container:
    """The processes of one pod on this host."""

    def __init__(self, pod: Object, ip: str, folder: Path, data: Data, extra: Mapping[str, str]) -> None:
        self.pod = pod
        self.ip = ip
        self.restarts = 0
        self._folder = folder
        self._mounts = self._mount(data)
        self._env = self._environment(data) | dict(extra)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """The agent's state: gone with the pod."""
        return Path(self._env[_HOME])

    @property
    def machine(self) -> Path:
        """The folder of its machine; processes carry it in their environment."""
        return machine_dir(self.home, self._env.get("HOLDFAST_MACHINE", self.pod["metadata"]["name"]))

    def start(self) -> None:
        """Start the container's process, in its own session."""
        spec = self.pod["spec"]["containers"][0]
        command = [*(spec.get("command") or []), *(spec.get("args") or [])]
        words = [self._rewrite(self._expand(word)) for word in command]
        program = sys.executable if words[0] in ("python", "python3") else words[0]
        self.machine.mkdir(parents=True, exist_ok=True)
        with (self._folder / "container.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**self._env, ENV_MACHINE_DIR: str(self.machine)},
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether the container's first process is gone."""
        return self._process is not None and self._process.poll() is not None

    @property
    def exit_code(self) -> int:
        """Of a first process that is gone."""
        assert self._process is not None
        return self._process.poll() or 0

    def terminate(self) -> None:
        """SIGTERM to the first process."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL everything in the container; memory and disk stay for a restart."""
        processes.kill_all(self.machine)
        if self._process is not None:
            self._process.wait()

    def destroy(self) -> None:
        """Kill it, and remove its volumes."""
        self.kill()
        shutil.rmtree(shm_root(self.home), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / "container.log").rename(self._folder.with_suffix(".log"))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mount(self, data: Data) -> dict[str, str]:
        """Folder of this host by mount path."""
        spec = self.pod["spec"]
        volumes = {each["name"]: each for each in spec.get("volumes") or []}
        mounts = {}
        for mount in spec["containers"][0].get("volumeMounts") or []:
            volume = volumes[mount["name"]]
            folder = self._folder / "volumes" / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                self._write(
                    folder,
                    data("secrets", volume["secret"]["secretName"]),
                    volume["secret"].get("defaultMode", 0o644),
                    (spec.get("securityContext") or {}).get("fsGroup"),
                )
            elif "emptyDir" not in volume:
                continue  # the service account's token, the host's kernel log
            if mount["mountPath"] != "/dev/shm":
                mounts[mount["mountPath"]] = str(folder)
        return mounts

    @staticmethod
    def _write(folder: Path, data: Mapping[str, str], mode: int, group: int | None) -> None:
        for key, value in data.items():
            with os.fdopen(os.open(folder / key, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "wb") as file:
                file.write(base64.b64decode(value))
                if group is not None and os.geteuid() == 0:
                    # Processes of this pod are root here: its files belong to another user than they, as with kubelets.
                    os.chown(file.fileno(), group, group)

    def _environment(self, data: Data) -> dict[str, str]:
        self._env = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ}
        # An image has the programs of what is installed in it on its path, whatever this process was started with.
        self._env["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        container = self.pod["spec"]["containers"][0]
        for each in container.get("envFrom") or []:
            entries = data("configmaps", each["configMapRef"]["name"])
            self._env |= {name: self._rewrite(value) for name, value in entries.items()}
        for each in container.get("env") or []:
            if (value := self._value(each, data)) is not None:
                self._env[each["name"]] = self._rewrite(value)
        return self._env

    def _value(self, each: Object, data: Data) -> str | None:
        source = each.get("valueFrom")
        if source is None:
            return self._expand(each.get("value", ""))
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            found = data("secrets", reference["name"]).get(reference["key"])
            assert found is not None or reference.get("optional"), f"no {reference}"
            return None if found is None else base64.b64decode(found).decode()
        path = source["fieldRef"]["fieldPath"]
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        known = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": spec.get("nodeName", ""),
            "status.podIP": self.ip,
        }
        return str(known[path])

    def _expand(self, text: str) -> str:
        return _REFERENCE.sub(lambda match: self._env.get(match[1], match[0]), text)

    def _rewrite(self, text: str) -> str:
        for path, folder in sorted(self._mounts.items(), key=lambda item: -len(item[0])):
            if text == path or text.startswith(f"{path}/"):
                return folder + text[len(path) :]
        return text
