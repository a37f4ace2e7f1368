"""The kinds, each with its row."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from holdfast.models.alert_kinds import (
    of_gpus,
    of_hosts,
    of_jobs,
    of_kernel,
    of_networks,
    of_outside,
    of_ranks,
)
from holdfast.models.alert_kinds.kind import Kind, SignalScope


class AlertKind(StrEnum):
    """The kind of a detector's finding: a member per row, called as the row is."""

    row: Kind

    def __new__(cls, value: Kind | str) -> Self:
        """Make the member of a row; by name, find one that there is (as in any enumeration)."""
        assert isinstance(value, Kind)
        made = str.__new__(cls, value.name)
        made._value_ = value.name
        made.row = value
        return made

    # Ranks
    RANK_EXIT = of_ranks.RANK_EXIT
    RANK_LOG = of_ranks.RANK_LOG

    # GPUs
    GPU_LOST = of_gpus.GPU_LOST
    XID = of_gpus.XID
    SXID = of_gpus.SXID
    GPU_ECC_UNCORRECTABLE = of_gpus.GPU_ECC_UNCORRECTABLE
    GPU_ECC_CORRECTABLE = of_gpus.GPU_ECC_CORRECTABLE
    GPU_ROW_REMAP_PENDING = of_gpus.GPU_ROW_REMAP_PENDING
    GPU_ROW_REMAP_FAILED = of_gpus.GPU_ROW_REMAP_FAILED
    GPU_TEMPERATURE = of_gpus.GPU_TEMPERATURE
    GPU_THROTTLED = of_gpus.GPU_THROTTLED
    GPU_PCIE_LINK = of_gpus.GPU_PCIE_LINK
    GPU_PCIE_REPLAYS = of_gpus.GPU_PCIE_REPLAYS
    NVLINK_ERROR = of_gpus.NVLINK_ERROR
    GPU_SETTINGS = of_gpus.GPU_SETTINGS
    DCGM_HEALTH = of_gpus.DCGM_HEALTH
    DCGM_DIAG = of_gpus.DCGM_DIAG

    # Kernel log
    KERNEL_PANIC = of_kernel.KERNEL_PANIC
    OOM_KILL = of_kernel.OOM_KILL
    SEGFAULT = of_kernel.SEGFAULT
    FILESYSTEM_ERROR = of_kernel.FILESYSTEM_ERROR
    DISK_FAULT = of_kernel.DISK_FAULT

    # Network
    NIC_DOWN = of_networks.NIC_DOWN
    NIC_FLAPPING = of_networks.NIC_FLAPPING
    NIC_ERRORS = of_networks.NIC_ERRORS
    PACKET_LOSS = of_networks.PACKET_LOSS
    SWITCH_DOWN = of_networks.SWITCH_DOWN

    # Host and storage
    CPU_PRESSURE = of_hosts.CPU_PRESSURE
    MEMORY_PRESSURE = of_hosts.MEMORY_PRESSURE
    DISK_FULL = of_hosts.DISK_FULL
    INODES_FULL = of_hosts.INODES_FULL
    MOUNT_READONLY = of_hosts.MOUNT_READONLY
    MOUNT_UNRESPONSIVE = of_hosts.MOUNT_UNRESPONSIVE
    CLOCK_SKEW = of_hosts.CLOCK_SKEW
    STORAGE_UNREACHABLE = of_hosts.STORAGE_UNREACHABLE
    HOST_FAULT = of_hosts.HOST_FAULT

    # The job as a whole
    MACHINE_LOST = of_hosts.MACHINE_LOST
    HANG = of_jobs.HANG
    NON_FINITE = of_jobs.NON_FINITE
    REPLICA_DIFFERS = of_jobs.REPLICA_DIFFERS
    METRIC_JUMP = of_jobs.METRIC_JUMP
    THROUGHPUT_DECLINE = of_jobs.THROUGHPUT_DECLINE
    MFU_DECLINE = of_jobs.MFU_DECLINE
    STRAGGLER = of_jobs.STRAGGLER
    UNRESTORABLE = of_jobs.UNRESTORABLE

    # From outside
    CONTAINER_ERROR = of_hosts.CONTAINER_ERROR
    EXTERNAL_SERVICE = of_outside.EXTERNAL_SERVICE
    MANUAL = of_outside.MANUAL
    CODE_UPDATE = of_outside.CODE_UPDATE
    PLANNED_MOVE = of_outside.PLANNED_MOVE


def of_scope(*scopes: SignalScope) -> frozenset[AlertKind]:
    """Return the kinds that are about one of ``scopes``."""
    return frozenset(kind for kind in AlertKind if kind.row.scope in scopes)


GPU_KINDS = of_scope(SignalScope.GPU)
NETWORK_KINDS = of_scope(SignalScope.NETWORK)
"""These come and go by themselves, so their repetition is evidence: the same one twice is two signals."""
HOST_KINDS = of_scope(SignalScope.HOST)
HUMAN_KINDS = of_scope(SignalScope.PERSON)
"""Asked for by a person: kept and done later rather than swallowed by another incident."""
MACHINE_KINDS = frozenset(kind for kind in AlertKind if kind.row.of_a_machine)
"""Signals of a machine: true for as long as this incarnation of it serves the job, in any epoch."""
