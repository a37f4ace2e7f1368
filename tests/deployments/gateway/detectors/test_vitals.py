"""For how long machines have shown nothing: counted from heartbeat to heartbeat, and only of what they had shown."""

from __future__ import annotations

from holdfast.deployments.gateway.detectors.vitals import VitalSigns
from holdfast.models.agent import Vitals
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.hang_facts import Stillness

TRAINS = Vitals(gpu_busy=0.98, sm_active=0.9, tensor_active=0.5, traffic_bytes_s=2e10)
SPINS = Vitals(gpu_busy=1.0, sm_active=0.1, tensor_active=0.0, traffic_bytes_s=10.0)


def signs(*readings: tuple[float, Vitals | None], life: str = "e1") -> VitalSigns:
    found = VitalSigns(Policy.load().hang)
    for at, vitals in readings:
        found.observe("m0", life, vitals, at)
    return found


def test_it_counts_from_the_first_heartbeat_that_shows_nothing() -> None:
    """All three at once, when a job that trained begins to spin."""
    found = signs((0.0, TRAINS), (2.0, SPINS), (4.0, SPINS), (9.0, SPINS))
    assert found.still("m0") == Stillness(spins_s=7.0, quiet_s=7.0, cold_s=7.0)
    found.observe("m0", "e1", TRAINS, 11.0)
    assert found.still("m0") == Stillness()


def test_what_never_showed_anything_shows_nothing_by_that() -> None:
    """A job on one machine, or without tensor cores; and an epoch that has just begun."""
    assert signs((0.0, SPINS), (900.0, SPINS)).still("m0") == Stillness()
    found = signs((0.0, TRAINS), (2.0, SPINS), (9.0, SPINS))
    found.observe("m0", "e2", SPINS, 20.0)
    found.observe("m0", "e2", SPINS, 90.0)
    assert found.still("m0") == Stillness()


def test_what_is_not_reported_is_not_counted() -> None:
    """No GPUs, no ports, GPUs without such counters; a gap ends what was counted."""
    blind = Vitals(gpu_busy=1.0, traffic_bytes_s=0.0)
    assert signs((0.0, TRAINS), (2.0, blind), (9.0, blind)).still("m0") == Stillness(quiet_s=7.0)
    assert signs((0.0, TRAINS), (2.0, SPINS), (4.0, None), (6.0, SPINS)).still("m0") == Stillness()
    assert signs().still("m9") == Stillness()


def test_machines_without_a_job_are_forgotten() -> None:
    """The record is as large as the jobs that run."""
    found = signs((0.0, TRAINS), (2.0, SPINS), (9.0, SPINS))
    found.keep({"m1"})
    assert found.still("m0") == Stillness()
