"""deployments/kubernetes/components/tls: what it makes of the base, also where there is no kubectl."""

from __future__ import annotations

import re

import jsonpatch
import yaml

from holdfast.drivers.kubernetes.api import Object
from tests.kubernetes.cluster import BASE, manifests

COMPONENT = BASE.parent / "components" / "tls"


def with_tls(*files: str) -> list[Object]:
    """Objects of files of the base, with the component's patches."""
    found = manifests(*files)
    for patch in yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())["patches"]:
        kind, name = patch["target"]["kind"], patch["target"]["name"]
        changes = yaml.safe_load((COMPONENT / patch["path"]).read_text())
        found = [
            jsonpatch.apply_patch(each, changes)
            if each["kind"] == kind and re.fullmatch(name, each["metadata"]["name"])
            else each
            for each in found
        ]
    return found


def pod_of(body: Object) -> Object:
    """Specification of the pods that a PodTemplate, Deployment or StatefulSet makes."""
    template: Object = body["template"] if body["kind"] == "PodTemplate" else body["spec"]["template"]
    spec: Object = template["spec"]
    return spec
