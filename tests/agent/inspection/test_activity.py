"""Activity of GPUs and ports: from NVIDIA's library (a stub of it, under the real pynvml) and from sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.inspection.activity import Activity
from holdfast.agent.inspection.nvml import Nvml
from holdfast.models.agent import Vitals
from tests.agent.inspection.kit import LIMITS, HandClock
from tests.agent.inspection.nvml_stub import StubGpus
from tests.agent.inspection.sysfs import FakeSys


class Machine:
    """Two GPUs of the stub, and ports of a test's own."""

    def __init__(self, root: Path) -> None:
        self.sys = FakeSys(root)
        self.clock = HandClock()
        self.activity = Activity(2.0, Nvml(), root, LIMITS.network, self.clock)

    def look(self, after_s: float = 2.0) -> Vitals:
        self.clock.now += after_s
        assert self.activity.poll() == self.activity.inspect() == []
        return self.activity.vitals


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "sys")


def test_sms_and_tensor_cores_from_the_second_look_on(gpus: StubGpus, machine: Machine) -> None:
    """Of the GPU that does most: one that computes is enough for a machine that works."""
    gpus.gpu(0, sm=90, tensor=40)
    gpus.gpu(1, sm=10, tensor=0)
    assert machine.look() == Vitals(gpu_busy=0.99)
    assert machine.look() == Vitals(gpu_busy=0.99, sm_active=0.9, tensor_active=0.4)
    gpus.gpu(0, sm=10, tensor=0)
    assert machine.look() == Vitals(gpu_busy=0.99, sm_active=0.1, tensor_active=0.0)


def test_gpus_that_do_not_report_are_not_known(gpus: StubGpus, machine: Machine) -> None:
    """Before Hopper; one that is lost; a driver that is gone."""
    machine.look()
    assert machine.look() == Vitals(gpu_busy=0.99)
    gpus.gpu(0, sm=90, tensor=40)
    machine.look()
    assert machine.look().sm_active is None, "the other one may do anything"
    gpus.gpu(1, sm=90, tensor=40)
    machine.look()
    gpus.gpu(1, error=15)
    assert machine.look() == Vitals(gpu_busy=0.99)
    gpus.set(count=None)
    assert machine.look() == Vitals()


def test_a_sample_that_failed_is_compared_with_nothing(gpus: StubGpus, machine: Machine) -> None:
    """The next load is that since the last sample that the GPU gave."""
    for gpu in range(2):
        gpus.gpu(gpu, sm=90, tensor=40)
    machine.look()
    gpus.gpu(1, sample__error=10)
    assert machine.look() == Vitals(gpu_busy=0.99)
    gpus.gpu(1, sample__error=None)
    assert machine.look() == Vitals(gpu_busy=0.99, sm_active=0.9, tensor_active=0.4)


def test_traffic_of_all_ports(machine: Machine) -> None:
    """InfiniBand counts words of four bytes; without ports nothing is known, after a reset nothing has grown."""
    assert machine.look().traffic_bytes_s is None
    machine.sys.infiniband(port_xmit_data=1000, port_rcv_data=0)
    machine.sys.ethernet(rx_bytes=10, tx_bytes=0)
    machine.look()
    machine.sys.infiniband(port_xmit_data=2000, port_rcv_data=500)
    machine.sys.ethernet(rx_bytes=10, tx_bytes=40)
    assert machine.look(after_s=4.0).traffic_bytes_s == (4 * 1500 + 40) / 4
    assert machine.look().traffic_bytes_s == 0.0
    machine.sys.infiniband(port_xmit_data=0, port_rcv_data=0)
    assert machine.look().traffic_bytes_s is None
