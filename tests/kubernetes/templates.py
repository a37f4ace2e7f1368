"""PodTemplates of tests."""

from __future__ import annotations

from pathlib import Path

from holdfast.drivers.kubernetes.api import Object

TOY = Path(__file__).parents[1] / "drivers" / "toy_agent.py"


def of(command: list[str]) -> Object:
    """Machines that run ``command``, one on each node."""
    container = {
        "name": "agent",
        "image": "none",
        "command": command,
        "args": ["--machine", "$(HOLDFAST_MACHINE)", "--home", "$(HOLDFAST_HOME)", "--host", "$(POD_IP)"],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "HOLDFAST_HOME", "value": "/var/lib/holdfast"},
        ],
        # All of a node's GPUs: one machine each.
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
        "volumeMounts": [{"name": "state", "mountPath": "/var/lib/holdfast"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "holdfast-machine"},
        "template": {
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 2,
                "containers": [container],
                "volumes": [{"name": "state", "emptyDir": {}}],
            }
        },
    }


def toy() -> Object:
    """Machines that run the stand-in for an agent."""
    return of(["python", str(TOY)])
