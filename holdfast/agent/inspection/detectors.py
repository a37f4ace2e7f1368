"""All detectors of one machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast import plugins
from holdfast.agent.inspection.activity import Activity
from holdfast.agent.inspection.base import Detector
from holdfast.agent.inspection.cloud_notice import CloudNotices, cloud
from holdfast.agent.inspection.dcgm import DcgmHealth
from holdfast.agent.inspection.driver_counters import DriverCounters
from holdfast.agent.inspection.gpu import GpuHealth
from holdfast.agent.inspection.host_memory import MemoryCheck
from holdfast.agent.inspection.ibstat import IbStat
from holdfast.agent.inspection.kernel_log import KernelLog
from holdfast.agent.inspection.mounts import Mounts
from holdfast.agent.inspection.network import Network
from holdfast.agent.inspection.nvml import Nvml
from holdfast.agent.inspection.nvml_events import XidEvents
from holdfast.agent.inspection.object_store import ObjectStoreAnswers
from holdfast.agent.inspection.oom_kills import OomKills
from holdfast.agent.inspection.pressure import Pressure
from holdfast.agent.inspection.raid import Raid
from holdfast.agent.inspection.roots import Roots
from holdfast.agent.inspection.smart import SmartDisks
from holdfast.agent.inspection.smi import Smi
from holdfast.agent.inspection.steady import Steady
from holdfast.agent.inspection.throttled import Throttled
from holdfast.agent.inspection.tool import Tool
from holdfast.models.agent import Vitals
from holdfast.paths import machine_dir
from holdfast.plugins import EntryPoints
from holdfast.policies.config.thresholds import DetectPolicy
from holdfast.settings import Settings


def detectors(
    machine: str, home: Path, settings: Settings, policy: DetectPolicy, roots: Roots
) -> tuple[tuple[Detector, ...], Callable[[], Vitals]]:
    """Return one of each kind, and those of other packages; those that find no device stay silent.

    The second result reports for heartbeats how the machine's GPUs and ports are doing.
    """
    every, nvml = policy.intervals, Nvml()
    gpus = Smi(nvml, Tool("nvidia-smi", policy.tools.timeout_s, roots.tools))
    activity = Activity(every.activity_s, nvml, roots.sys, policy.network, time.monotonic)
    made = (
        activity,
        KernelLog(machine, roots.kernel_log, every, block=roots.sys / "block"),
        XidEvents(machine, every.host_s, nvml),
        Steady(machine, GpuHealth(policy.gpu, gpus, time.monotonic), every.gpu_s, blocking=True),
        Steady(machine, DcgmHealth(policy.gpu.dcgm_timeout_s), every.gpu_s, blocking=True),
        Steady(machine, Network(roots.sys, policy.network, time.monotonic), every.network_s),
        Steady(machine, MemoryCheck(policy.host), every.host_s),
        Steady(machine, Pressure(roots.proc, policy.host), every.host_s),
        Steady(
            machine,
            Throttled(policy.host, Path("/proc"), Path("/sys/fs/cgroup"), born_shared=roots.shares_host),
            every.host_s,
        ),
        Steady(machine, OomKills(roots.proc, roots.sys), every.host_s),
        Steady(
            machine,
            Mounts(home, policy.storage, folder=machine_dir(home, machine)),
            every.host_s,
            blocking=True,
            again_s=every.network_s,
        ),
        *_object_store(machine, settings, policy),
        *_of_tools(machine, policy, roots),
        *_notices(machine, settings, every.notices_s),
        *plugins.make(EntryPoints.DETECTORS, machine, home, settings).values(),
    )
    return made, lambda: activity.vitals


def _object_store(machine: str, settings: Settings, policy: DetectPolicy) -> tuple[Detector, ...]:
    if not settings.stored_in_s3:
        return ()  # a package that brings a store may bring its detector
    check = ObjectStoreAnswers(settings.s3, policy.storage)
    return (Steady(machine, check, policy.intervals.storage_s, blocking=True, on_command=False),)


def _of_tools(machine: str, policy: DetectPolicy, roots: Roots) -> tuple[Detector, ...]:
    """Return those that ask a tool of the machine. On command disks have less time to answer."""
    every, limits = policy.intervals, policy.tools
    names = ("mdadm", "smartctl", "ethtool", "ibstat")
    mdadm, smartctl, ethtool, ibstat = (Tool(name, limits.timeout_s, roots.tools) for name in names)
    smart = SmartDisks(roots.sys, roots.proc, smartctl, limits, time.monotonic)
    counters = DriverCounters(roots.sys, ethtool, policy.network, time.monotonic)
    adapters = IbStat(roots.sys, ibstat, policy.network, time.monotonic)
    return (
        Steady(machine, Raid(roots.sys, roots.proc, mdadm), every.storage_s, blocking=True),
        Steady(machine, counters, every.network_s, blocking=True),
        Steady(machine, adapters, every.network_s, blocking=True),
        Steady(machine, smart, every.disk_s, blocking=True, look_soon=smart.look_soon),
    )


def _notices(machine: str, settings: Settings, interval_s: float) -> tuple[Detector, ...]:
    if not settings.cloud_notices:
        return ()
    return (CloudNotices(machine, cloud(settings.cloud_notices, settings.cloud_metadata_url), interval_s),)
