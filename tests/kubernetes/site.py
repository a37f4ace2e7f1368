"""A control plane of Holdfast on this host, whose machines are pods of a cluster."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import secret
from holdfast.deployments.local import machines as supply
from holdfast.drivers.kubernetes.api import Object
from tests.e2e.site import Site
from tests.kubernetes.cluster import Cluster, manifests


@contextmanager
def on_kubernetes(
    cluster: Cluster,
    namespace: str,
    home: Path,
    *,
    machines: int,
    supplied: int,
    secrets: Mapping[str, str] | None = None,
    **settings: str,
) -> Iterator[Site]:
    """A site in ``home`` that may have ``machines`` at least, with ``supplied`` of them up.

    ``secrets`` are further keys of the Secret ``holdfast``; ``settings`` further settings of the control plane.
    """
    shared = {"secret": secret.create(home / "secret"), **(secrets or {})}
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "holdfast"},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in shared.items()},
    }
    cluster.prepare(namespace, manifests("machine.yaml")[0])
    cluster.apply(body, namespace)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "PREFECT_"))]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_HOME", str(home))
        site = Site.up(
            home,
            0,
            driver="kubernetes",
            kubernetes_config=str(cluster.kubeconfig(namespace)),
            kubernetes_machines=machines,
            kubernetes_priority_class="holdfast-machine",
            kubernetes_standby_priority_class="holdfast-standby",
            **settings,
        )
        try:
            cluster.apply(_template(site), namespace)
            supply.have(site.settings, supplied, print, threading.Event())
            yield site
        finally:
            site.down()
            cluster.remove(namespace)


def _template(site: Site) -> Object:
    """The packaged PodTemplate with this site's addresses."""
    [found] = manifests("machine.yaml")
    container = found["template"]["spec"]["containers"][0]
    for each in container["env"]:
        if each["name"] == "HOLDFAST_GATEWAY_URL":
            each["value"] = site.settings.gateway
        if each["name"] == "HOLDFAST_S3_ENDPOINT":
            each["value"] = site.settings.s3
        if each["name"] == "HOLDFAST_DRIVER":
            # All nodes are this host: what happens to its kernel accuses none of them.
            each["value"] = "local"
    return dict(found)
