"""deployments/kubernetes/components: what they make of the base, also where there is no kubectl."""

from __future__ import annotations

import re

import jsonpatch
import yaml

from holdfast.drivers.kubernetes.api import Object
from tests.kubernetes.cluster import BASE, manifests

COMPONENTS = BASE.parent / "components"


def with_tls(*files: str) -> list[Object]:
    """Objects of files of the base, with the component tls."""
    return with_component("tls", *files)


def with_component(name: str, *files: str) -> list[Object]:
    """Objects of files of the base, with a component's patches."""
    found, folder = manifests(*files), COMPONENTS / name
    for patch in yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]:
        kind, target = patch["target"]["kind"], patch["target"]["name"]
        changes = yaml.safe_load((folder / patch["path"]).read_text())
        found = [
            jsonpatch.apply_patch(each, changes)
            if each["kind"] == kind and re.fullmatch(target, each["metadata"]["name"])
            else each
            for each in found
        ]
    return found


def pod_of(body: Object) -> Object:
    """Specification of the pods that a PodTemplate, Deployment or StatefulSet makes."""
    template: Object = body["template"] if body["kind"] == "PodTemplate" else body["spec"]["template"]
    spec: Object = template["spec"]
    return spec
