"""Playbooks as pods: Prefect's own Kubernetes worker, with the packaged job template, recovers a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.deployments.worker.environment import client_environment
from holdfast.drivers.kubernetes.api import Object
from holdfast.drivers.kubernetes_settings import KubernetesSettings
from holdfast.models.alert import Incident, IncidentClass
from holdfast.settings import read
from tests.certificates import AGENT_NAME, Authority
from tests.e2e.site import Site
from tests.e2e.stock_prefect import ROOT, deploy_into
from tests.e2e.waiting import end, wait_for
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.site import on_kubernetes
from tests.storage import servers

pytest.importorskip("prefect_kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(900)]

NAMESPACE = "holdfast"
"""The template's own."""
POOL = "pods"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    """A site whose ledger is in PostgreSQL, since pods reach no file of another host; all speak TLS."""
    if (programs := servers.postgres_binaries()) is None:
        pytest.skip("PostgreSQL is not installed")
    home = tmp_path / ".holdfast"
    pki = Authority(tmp_path / "pki")
    with (
        servers.postgres(programs) as database,
        on_kubernetes(
            cluster,
            NAMESPACE,
            home,
            machines=2,
            supplied=3,
            secrets={"holdfast_database_url": database, "ca.crt": pki.pem.decode()},
            pki=pki,
            database_url=database,
        ) as site,
    ):
        yield site


@contextmanager
def kubernetes_worker(site: Site, cluster: Cluster, log: Path) -> Iterator[None]:
    """Prefect's own worker of type kubernetes, outside of the cluster."""
    environment = client_environment(site.settings) | {
        "KUBECONFIG": str(cluster.plane.kubeconfig),
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
        "PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES": f'["{NAMESPACE}"]',
    }
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "kubernetes"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=file, stderr=file)
    try:
        yield
    except BaseException:
        print(log.read_text()[-6000:])  # noqa: T201  (shown with the failure)
        raise
    finally:
        end(process)


def config_map(site: Site) -> Object:
    """The config map for an operator's pods of playbooks."""
    own = read(KubernetesSettings, site.settings.home)
    data = {
        "HOLDFAST_GATEWAY_URL": site.settings.gateway,
        "HOLDFAST_S3_ENDPOINT": site.settings.s3,
        "HOLDFAST_KUBERNETES_MACHINES": str(own.machines),
        "HOLDFAST_KUBERNETES_PRIORITY_CLASS": own.priority_class,
        "HOLDFAST_KUBERNETES_STANDBY_PRIORITY_CLASS": own.standby_priority_class,
        "HOLDFAST_TLS_CA": "/etc/holdfast/secrets/ca.crt",
        "HOLDFAST_TLS_AGENT_NAME": AGENT_NAME,
        # In place of the token that a kubelet mounts at a path of its own.
        "HOLDFAST_KUBERNETES_CONFIG": own.config,
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "holdfast"}, "data": data}


@pytest.mark.thorough
def test_a_playbook_runs_in_a_pod(site: Site, cluster: Cluster, tmp_path: Path) -> None:
    """Work pool, `prefect deploy --all` and worker as documented: a dead rank and a dead machine are recovered."""
    cluster.apply(config_map(site), NAMESPACE)
    template = ROOT / "deployments" / "prefect" / "kubernetes-pool.json"
    deploy_into(site, tmp_path, POOL, "kubernetes", "--base-job-template", str(template))
    site.submit("pods")
    with kubernetes_worker(site, cluster, tmp_path / "worker.log"):
        os.kill(site.pids("pods")[1], signal.SIGKILL)
        crash = site.wait_recovered("pods", 1, timeout_s=300)
        assert crash.incident_class is IncidentClass.JOB_CRASH
        # Its pod may be on the node that is to lose its power: its end would never be reported.
        wait_for("its Kubernetes job has succeeded", lambda: _succeeded(cluster, crash), 240)
        before = site.job("pods").machines
        cluster.kubelets.power_off(cluster.kubelets.node_of(before[1]))
        lost = site.wait_recovered("pods", 2, timeout_s=300)
        assert lost.incident_class is IncidentClass.MACHINE_FAULT
        assert site.evicted() == {before[1]}
        for incident in (crash, lost):
            run = site.flow_run(incident)
            assert run["work_pool_name"] == POOL
            assert run["labels"].get("prefect.worker.name", "").startswith("KubernetesWorker"), run["labels"]
            assert incident.first_task_at is not None
            print(f"alert to first task: {incident.first_task_at - incident.detected_at:.1f} s")  # noqa: T201
        wait_for("its Kubernetes job has succeeded", lambda: _succeeded(cluster, lost), 240)


def _succeeded(cluster: Cluster, incident: Incident) -> bool:
    """The Kubernetes job of the incident's run; others belong to machines that are admitted."""
    jobs = cluster.admin.get(JOBS)["items"]
    done = {each["metadata"]["labels"]["prefect.io/flow-run-id"] for each in jobs if _well(each)}
    return incident.flow_run_id in done


def _well(job: Object) -> bool:
    return bool(job["status"].get("succeeded"))
