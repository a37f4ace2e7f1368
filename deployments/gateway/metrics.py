"""Metrics of the gateway. Labels take only values from closed sets or the ledger, never raw request text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """One registry per gateway, so that two in one process (tests) do not share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._labelled: list[Gauge] = []
        self._plain: list[Gauge] = []
        self.unauthorized = self._counter("unauthorized", "Requests with a missing or wrong secret.", "route")
        self.heartbeats = self._counter("heartbeats", "Heartbeats by outcome.", "outcome")
        self.alerts = self._counter("alerts", "Alerts by kind and outcome.", "kind", "outcome")
        self.truncated = self._counter(
            "alertmanager_truncated_alerts", "Alerts that Alertmanager left out of a group."
        )
        self.incidents = self._counter("incidents", "Incidents opened, by class.", "incident_class")
        self.cordons = self._counter("standby_cordons", "Standbys taken out of the pool, by reason.", "kind")
        self.attempts = self._counter(
            "playbook_attempts", "Playbook runs started again, by reason.", "reason"
        )
        self.pokes = self._counter("worker_pokes", "Pokes of the playbook worker, by outcome.", "outcome")
        self.offline = self._counter("offline_playbooks", "Playbooks run while Prefect was away.")
        self.probes = self._counter("agent_probes", "Probes of agents, by outcome.", "outcome")
        self.replicas = self._counter(
            "replica_comparisons", "Steps at which replicas were compared, by outcome.", "outcome"
        )
        self.loop_errors = self._counter("loop_errors", "Failed rounds of a background loop.", "loop")
        self.accept_s = self._histogram("alert_accept_seconds", "Alert received to incident in the ledger.")
        self.dispatch_s = self._histogram("dispatch_seconds", "Incident opened to flow run created.")
        self.alone = self._gauge("gateway_alone", "1 while no machine answers: then none is accused.")
        self.deployments_missing = self._gauge(
            "prefect_deployments_missing", "Deployments of playbooks that Prefect does not have."
        )
        self.prefect_up = self._gauge("prefect_up", "1 when Prefect's API answered the last call.")
        self.machines = self._gauge("machines", "Machines by state.", "state")
        self.open_incidents = self._gauge(
            "open_incidents", "Incidents that are open, by class.", "incident_class"
        )
        self.job_step = self._gauge("job_step", "Newest step of a job.", "job")
        self.job_epoch = self._gauge("job_epoch", "Newest epoch of a job.", "job")
        self.role_replicas = self._gauge("role_replicas", "Replicas that a role is to have.", "job", "role")
        self.role_running = self._gauge("role_running", "Replicas of a role that run.", "job", "role")
        self.role_share = self._gauge(
            "role_share", "Time that a role's replicas ran, of the time that they were wanted.", "job", "role"
        )
        self.job_ettr = self._gauge(
            "job_ettr",
            "Productive over wall-clock time: of the job's life, and in the window.",
            "job",
            "over",
        )
        self.job_wall_s = self._gauge("job_wall_seconds", "Wall-clock time of a job.", "job")
        self.job_productive_s = self._gauge(
            "job_productive_seconds", "Time in which new steps were made.", "job"
        )
        self.job_zero_s = self._gauge(
            "job_scaled_to_zero_seconds", "Time for which a job was scaled to zero by wish: not lost.", "job"
        )
        self.job_lost_s = self._gauge(
            "job_lost_seconds",
            "Time lost, by phase and incident class; productive time, that at zero and this are the wall-clock time.",
            "job",
            "phase",
            "incident_class",
        )

    def stand_by(self) -> None:
        """Show nothing of what only the gateway that leads knows: figures of former times would page people."""
        for gauge in self._labelled:
            gauge.clear()
        for gauge in self._plain:
            gauge.set(float("nan"))

    def render(self) -> bytes:
        """Return all metrics in Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"holdfast_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(f"holdfast_{name}", text, labels, registry=self.registry)
        (self._labelled if labels else self._plain).append(gauge)
        return gauge

    def _histogram(self, name: str, text: str) -> Histogram:
        buckets = (0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
        return Histogram(f"holdfast_{name}", text, buckets=buckets, registry=self.registry)
