"""Xid events through the library."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.kernel_log import KernelLog
from holdfast.agent.inspection.nvml import Nvml
from holdfast.agent.inspection.nvml_events import XidEvents
from holdfast.models.alert import AlertKind
from tests.agent.inspection import nvml_stub
from tests.agent.inspection.kit import LIMITS
from tests.agent.inspection.nvml_stub import StubGpus


def test_an_xid_event_is_an_alert(gpus: StubGpus) -> None:
    """With code, device and the catalogue's action; each once."""
    events = XidEvents("m0", 2.0, Nvml())
    assert events.poll() == []
    gpus.event(1, 79)
    gpus.event(0, 31)
    lost, fault = events.poll()
    assert lost.kind is AlertKind.XID
    assert (lost.evidence["xid"], lost.evidence["pci"]) == (79, "0000:3c:00")
    assert (lost.evidence["action"], lost.evidence["lost"]) == ("restart_machine", True)
    assert (fault.evidence["xid"], fault.evidence["lost"]) == (31, False)
    assert events.poll() == []


def test_a_host_without_driver_has_no_events(gpus: StubGpus) -> None:
    """Nor an error; once there is one, its events are taken."""
    gpus.set(count=None)
    events = XidEvents("m0", 2.0, Nvml())
    gpus.event(0, 48)
    assert events.poll() == []
    gpus.set(count=1)
    assert [alert.evidence["xid"] for alert in events.poll()] == [48]


def test_the_kernel_logs_alert_of_the_same_xid_is_the_same_signal(gpus: StubGpus, tmp_path: Path) -> None:
    """Two sources, one fingerprint: the second is a duplicate."""
    log = tmp_path / "kernel.log"
    kernel = KernelLog("m0", log, LIMITS.intervals)
    events = XidEvents("m0", 2.0, Nvml())
    gpus.event(0, 79)
    log.write_text("NVRM: Xid (PCI:0000:3b:00): 79, pid=12, name=python, GPU has fallen off the bus.\n")
    assert [alert.fingerprint for alert in events.poll()] == [alert.fingerprint for alert in kernel.poll()]


def test_a_gpu_without_events_takes_none_from_the_others(gpus: StubGpus) -> None:
    """It is partitioned, virtual, or lost."""
    gpus.gpu(1, register_error=3)
    events = XidEvents("m0", 2.0, Nvml())
    assert events.poll() == []
    gpus.event(0, 48)
    assert [alert.evidence["xid"] for alert in events.poll()] == [48]


def test_polls_without_any_event_source_leave_nothing_behind(gpus: StubGpus) -> None:
    """Each set of events that the library makes holds descriptors of the agent."""
    gpus.gpu(0, register_error=3)
    gpus.gpu(1, register_error=3)
    events, before = XidEvents("m0", 2.0, Nvml()), nvml_stub.load().stub_event_sets()
    assert [events.poll() for _ in range(3)] == [[]] * 3
    assert nvml_stub.load().stub_event_sets() == before
