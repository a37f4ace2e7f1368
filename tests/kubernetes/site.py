"""A control plane of Holdfast on this host, whose machines are pods of a cluster."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import secret
from holdfast.deployments.local import machines as supply
from holdfast.drivers.kubernetes.api import Object
from tests.certificates import AGENT_NAME, Authority
from tests.e2e.site import Site
from tests.kubernetes.cluster import Cluster, manifests
from tests.kubernetes.components import with_tls


@contextmanager
def on_kubernetes(
    cluster: Cluster,
    namespace: str,
    home: Path,
    *,
    machines: int,
    supplied: int,
    secrets: Mapping[str, str] | None = None,
    pki: Authority | None = None,
    **settings: Any,
) -> Iterator[Site]:
    """A site in ``home`` that may have ``machines`` at least, with ``supplied`` of them up.

    ``secrets`` are further keys of the Secret ``holdfast``; ``settings`` further settings of the control plane. With
    ``pki`` everything speaks TLS, by the component of the manifests and certificates of that authority.
    """
    make = manifests if pki is None else with_tls
    cluster.prepare(namespace, make("machine.yaml")[0])
    cluster.apply(
        _secret("holdfast", {"secret": secret.create(home / "secret"), **(secrets or {})}), namespace
    )
    if pki is not None:
        cert, key = pki.certify("site", "127.0.0.1", AGENT_NAME)
        files = {"tls.crt": cert.read_text(), "tls.key": key.read_text(), "ca.crt": pki.pem.decode()}
        cluster.apply(_secret("holdfast-tls", files), namespace)
        settings |= {"tls_cert": cert, "tls_key": key, "tls_ca": pki.ca, "tls_agent_name": AGENT_NAME}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "PREFECT_"))]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_HOME", str(home))
        own = {
            "CONFIG": cluster.kubeconfig(namespace),
            "MACHINES": machines,
            "PRIORITY_CLASS": "holdfast-machine",
            "STANDBY_PRIORITY_CLASS": "holdfast-standby",
        }
        for name, value in own.items():
            patch.setenv(f"HOLDFAST_KUBERNETES_{name}", str(value))
        site = Site.up(
            home,
            0,
            driver="kubernetes",
            **settings,
        )
        try:
            cluster.apply(_configured(make("machine.yaml")[0], site), namespace)
            supply.have(site.settings, supplied, print, threading.Event())
            yield site
        finally:
            site.down()
            cluster.remove(namespace)


def _secret(name: str, content: Mapping[str, str]) -> Object:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def _configured(found: Object, site: Site) -> Object:
    """A PodTemplate with this site's addresses."""
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
