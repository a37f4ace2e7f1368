"""The agent's Prometheus metrics, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One instance per agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.unauthorized = self._counter("holdfast_unauthorized", "Requests with a missing or wrong secret.")
        self.commands = self._counter("holdfast_agent_commands", "Commands by outcome.", "command", "outcome")
        self.exits = self._counter(
            "holdfast_rank_exits", "Rank processes that ended by themselves.", "job", "how"
        )
        self.steps = Gauge(
            "holdfast_rank_step", "Last completed step.", ("job", "rank"), registry=self.registry
        )
        self.start_seconds = self._histogram(
            "holdfast_start_seconds", "From a start command to all ranks forked."
        )
        self.fence_seconds = self._histogram(
            "holdfast_fence_seconds", "From a fence command to all ranks gone."
        )
        self.replications = self._counter(
            "holdfast_replications", "Shards sent to the peer, by outcome.", "outcome"
        )
        self.replication_seconds = self._histogram(
            "holdfast_replication_seconds", "Sending one shard to the peer."
        )
        self.uploads = self._counter("holdfast_uploads", "Shards for S3, by outcome.", "outcome")
        self.disk_copies = self._counter(
            "holdfast_disk_copies", "Shards for the disk, by outcome.", "outcome"
        )
        self.saves_skipped = self._counter(
            "holdfast_saves_skipped", "Saves left out, since the one before was not done.", "job"
        )
        self.saves_failed = self._counter(
            "holdfast_saves_failed", "Saves that went wrong; training went on.", "job"
        )
        self.restore_seconds = self._histogram(
            "holdfast_restore_seconds", "A rank's wait for its state and its load, by tier.", "tier"
        )
        self.restore_nbytes = self._counter(
            "holdfast_restore_read_bytes", "Read from S3 by ranks that restored.", "tier"
        )
        self.digests = self._counter(
            "holdfast_state_digests",
            "Saves whose tensors were digested for a comparison, by outcome.",
            "outcome",
        )
        self.rehearsals = self._counter(
            "holdfast_rehearsals", "Restores that were rehearsed, by outcome.", "outcome"
        )
        self.rehearsal_seconds = self._histogram(
            "holdfast_rehearsal_seconds", "Loading one shard, or reading one checkpoint in S3, and comparing."
        )
        self.reports_dropped = self._counter("holdfast_reports_dropped", "Events lost to a full buffer.")
        self.cut_off = self._counter(
            "holdfast_cut_off", "Times that ranks were ended because the gateway could not be reached."
        )
        self.heartbeats_failed = self._counter(
            "holdfast_heartbeats_failed", "Heartbeats that did not arrive."
        )

    def render(self) -> bytes:
        """Return the metrics in text exposition format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=_SECONDS, registry=self.registry)
