"""From a GPU's Xid to the playbook's run, through a real Prometheus and a real Alertmanager with the shipped files."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.models.alert import IncidentClass, IncidentState
from tests.e2e.monitoring import monitoring
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for


def counted(site: Site, outcome: str) -> float:
    """Alerts of kind Xid that the gateway answered so."""
    text = site.http.get("/metrics").text
    found = re.search(rf'holdfast_alerts_total{{kind="xid",outcome="{outcome}"}} (\S+)', text)
    return float(found[1]) if found else 0.0


def test_an_xid_that_prometheus_sees_is_recovered(site: Site, name: str, tmp_path: Path) -> None:
    """The rule fires, the playbook's deployment runs once; repetitions and the resolved alert do nothing."""
    machine = site.submit(name).machines[1]
    with monitoring(site, tmp_path, machine) as seen:
        wait_for(
            "Prometheus scrapes the exporter, the gateway and the agents",
            lambda: (
                seen.value(f'DCGM_FI_DEV_XID_ERRORS{{machine="{machine}"}}') == 0
                and (seen.value(f'holdfast_job_step{{job="{name}"}}') or 0) > 0
                and (
                    seen.value(f'max by (job) (holdfast_rank_step{{job="{name}",machine="{machine}"}})') or 0
                )
                > 0
            ),
        )
        before = {outcome: counted(site, outcome) for outcome in ("duplicate", "refused")}
        seen.exporter.xid = 79

        incident = site.wait_recovered(name)
        assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, machine)
        (signal,) = [alert for alert in incident.alerts if alert.evidence.get("source") == "alertmanager"]
        assert signal.evidence["device"] == "GPU 0"
        assert "Xid 79 on GPU 0" in signal.evidence["detail"]
        run = site.flow_run(incident)
        assert run["deployment_id"]
        assert site.evicted() == {machine}

        wait_for("a repeated group is known", lambda: counted(site, "duplicate") > before["duplicate"])
        seen.exporter.xid = 0
        wait_for("the resolved alert is refused", lambda: counted(site, "refused") > before["refused"])
        # By now the reconciler has looked again.
        site.wait_more_steps(name, 20)
    assert [known.state for known in site.ledger.incidents(job=name)] == [IncidentState.RECOVERED]
    assert site.done(incident)["evict"] == 1
    assert len(site.epochs(name)) == 2
