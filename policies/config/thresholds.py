"""Settings of the detectors: intervals and thresholds, the ``detect`` section of the policy file.

Intervals are those of ByteRobust (arXiv 2509.16293): host 2 s, GPU 10 s, network 30 s.
"""

from __future__ import annotations

from pydantic import Field

from holdfast.models.base import Given

Share = Field(gt=0, le=1)
Seconds = Field(gt=0)
Count = Field(ge=1)


class IntervalsPolicy(Given):
    """How often each part of a machine is checked."""

    kernel_log_s: float = Seconds
    host_s: float = Seconds
    activity_s: float = Seconds
    gpu_s: float = Seconds
    network_s: float = Seconds
    storage_s: float = Seconds
    disk_s: float = Seconds
    rank_log_s: float = Seconds
    notices_s: float = Seconds
    drains_s: float = Seconds
    repeat_s: float = Field(ge=0)
    recent_s: float = Seconds
    stalled_s: float = Seconds


class GpuLimits(Given):
    """When a GPU is not well."""

    misses: int = Count
    shutdown_margin_c: float = Field(ge=0)
    memory_margin_c: float = Field(ge=0)
    correctable_per_hour: float = Field(gt=0)
    pcie_replays_per_minute: float = Field(gt=0)
    nvlink_errors_per_minute: float = Field(gt=0)
    power_limit_share: float = Share
    dcgm_timeout_s: float = Seconds


class NetworkLimits(Given):
    """When a port is not well, and which machines share a switch."""

    interfaces: tuple[str, ...]
    ignored: tuple[str, ...]
    loss_share: float = Share
    loss_packets: int = Count
    errors_per_minute: float = Field(gt=0)
    switches: dict[str, tuple[str, ...]]
    switch_share: float = Share
    switch_machines: int = Field(ge=2)
    switch_misses: int = Count
    switch_window_s: float = Seconds


class HostLimits(Given):
    """When a host is short of something."""

    misses: int = Count
    memory_free_share: float = Field(ge=0, lt=1)
    memory_pressure_share: float = Share
    cpu_pressure_share: float = Share
    clock_skew_s: float = Seconds


class StorageLimits(Given):
    """When storage is not well."""

    paths: tuple[str, ...]
    misses: int = Count
    disk_free_bytes: int = Field(ge=0)
    inodes_free_share: float = Field(ge=0, lt=1)
    mount_timeout_s: float = Seconds
    s3_timeout_s: float = Seconds
    s3_misses: int = Count


class ToolLimits(Given):
    """How long a tool of the machine may take, and when its report counts."""

    timeout_s: float = Seconds
    disk_errors: int = Count


class MetricLimits(Given):
    """When loss or gradient norm jump."""

    jump_factor: float = Field(gt=1)
    jump_deviations: float = Field(gt=0)
    jump_tail: float = Field(ge=1)
    jump_steps: int = Count
    history: int = Field(ge=8)
    warmup: int = Field(ge=3)
    floor: float = Field(ge=0)


class ThroughputLimits(Given):
    """When a job has become slow."""

    baseline: int = Field(ge=16)
    recent: int = Field(ge=4)
    slower: float = Field(gt=1)
    deviations: float = Field(gt=0)
    lasting_s: float = Seconds
    every_s: float = Seconds


class StragglerLimits(Given):
    """When a rank is slower than its peers."""

    slower: float = Field(gt=1)
    deviations: float = Field(gt=0)
    least_s: float = Field(ge=0)
    most_share: float = Share
    rounds: int = Count
    every_s: float = Seconds


class ReplicaLimits(Given):
    """When replicas are compared, and what counts."""

    every_steps: int = Field(ge=0)
    learn: int = Field(ge=2)
    few: int = Count


class DetectPolicy(Given):
    """The ``detect`` section."""

    intervals: IntervalsPolicy
    gpu: GpuLimits
    network: NetworkLimits
    host: HostLimits
    storage: StorageLimits
    tools: ToolLimits
    metrics: MetricLimits
    throughput: ThroughputLimits
    straggler: StragglerLimits
    replicas: ReplicaLimits
