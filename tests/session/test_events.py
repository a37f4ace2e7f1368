"""Parts of a step on a GPU's own clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.policies.config.policy import Policy
from holdfast.session.events import GpuTimes, cuda_event
from holdfast.session.phase import EXEMPT, Phase, Phases

if TYPE_CHECKING:
    from holdfast.session.rank_reporter import RankReporter


@dataclass
class Gpu:
    """Runs what it is handed later: the moments at which it comes to events, in milliseconds."""

    queued_ms: float = 0.0
    """Work that it was handed so far."""
    done_ms: float = 0.0
    """How far it is."""
    lost: bool = False
    waits: int = 0

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def launch(self, ms: float) -> None:
        self.queued_ms += ms


@dataclass
class FakeEvent:
    """As torch.cuda.Event."""

    gpu: Gpu
    at_ms: float = field(default=-1.0)

    def record(self) -> None:
        if self.gpu.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        self.at_ms = self.gpu.queued_ms

    def query(self) -> bool:
        if self.gpu.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return self.gpu.done_ms >= self.at_ms

    def synchronize(self) -> None:
        self.gpu.waits += 1

    def elapsed_time(self, end_event: FakeEvent) -> float:
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end_event.at_ms - self.at_ms


def step(phases: Phases, gpu: Gpu, forward_ms: float, backward_ms: float) -> dict[str, float]:
    with Phase(phases, "forward"):
        gpu.launch(forward_ms)
    with Phase(phases, "backward"):
        gpu.launch(backward_ms)
    return phases.take()


def test_kernels_count_for_the_part_that_launched_them_one_step_later() -> None:
    """The host only hands them over: on its clock both parts take nothing. The step does not wait for the GPU."""
    gpu = Gpu()
    phases = Phases(None, GpuTimes(gpu.event))
    assert step(phases, gpu, 20.0, 40.0) == {}
    gpu.done_ms = gpu.queued_ms
    assert step(phases, gpu, 30.0, 50.0) == {"forward": 0.02, "backward": 0.04}
    gpu.done_ms = gpu.queued_ms
    assert step(phases, gpu, 1.0, 1.0) == {"forward": 0.03, "backward": 0.05}
    assert gpu.waits == 0


def test_a_gpu_that_is_behind_is_read_when_it_has_come_so_far() -> None:
    """Of several steps that it is through with since, the newest counts; what is too old is dropped."""
    gpu = Gpu()
    phases = Phases(None, GpuTimes(gpu.event))
    for ms in (10.0, 20.0, 30.0):
        assert step(phases, gpu, ms, ms) == {}
    gpu.done_ms = 60.0  # the first two
    assert step(phases, gpu, 1.0, 1.0) == {"forward": 0.02, "backward": 0.02}
    for _ in range(50):
        assert step(phases, gpu, 5.0, 5.0) == {}
    gpu.done_ms = gpu.queued_ms
    assert step(phases, gpu, 5.0, 5.0) == {"forward": 0.005, "backward": 0.005}


def test_a_part_that_ends_in_another_stream_is_read_when_both_have_come_so_far() -> None:
    """The stream that it began in may be behind; its events are used in later steps, too."""
    behind, ahead = Gpu(), Gpu()
    streams = [behind, ahead]

    def event() -> FakeEvent:
        return streams[0].event()

    phases = Phases(None, GpuTimes(event))

    def part() -> dict[str, float]:
        streams[:] = [behind, ahead]
        behind.launch(10.0)
        with Phase(phases, "forward"):
            streams.reverse()
            ahead.launch(30.0)
        return phases.take()

    assert part() == {}
    ahead.done_ms = ahead.queued_ms
    assert part() == {}
    behind.done_ms, ahead.done_ms = behind.queued_ms, ahead.queued_ms
    assert part() == {"forward": 0.04}


def test_what_the_host_does_by_itself_stays_on_its_clock() -> None:
    """Checkpoints, evaluations, compilation."""
    gpu = Gpu()
    phases = Phases(None, GpuTimes(gpu.event))
    with Phase(phases, "compile"):
        pass
    phases.add("checkpoint", 0.5)
    seconds = phases.take()
    assert seconds["checkpoint"] == 0.5
    assert seconds.keys() == {"compile", "checkpoint"}


def test_a_lost_gpu_leaves_the_hosts_clock() -> None:
    """Training hears of it from its own calls, not from a timer."""
    gpu = Gpu()
    phases = Phases(None, GpuTimes(gpu.event))
    step(phases, gpu, 1.0, 1.0)
    gpu.lost = True
    assert step(phases, gpu, 1.0, 1.0).keys() == {"forward", "backward"}
    gpu.lost = False
    assert step(phases, gpu, 1.0, 1.0).keys() == {"forward", "backward"}


def test_a_process_without_cuda_has_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """And asking for one initialises nothing."""
    import torch  # noqa: PLC0415

    def never() -> None:
        raise AssertionError("it was initialised")

    monkeypatch.setattr(torch.cuda, "init", never)
    monkeypatch.setattr(torch.cuda, "_lazy_init", never)
    assert cuda_event() is None
    phases = Phases(None)
    with Phase(phases, "forward"):
        pass
    assert phases.take().keys() == {"forward"}


def test_the_phases_that_are_reported_as_long_are_those_with_a_limit() -> None:
    """One without a limit is reported in vain, and a limit of a name that no rank reports is never applied."""
    assert Policy.load().hang.activity_limits_s.keys() == EXEMPT


class Reporter:
    """The agent's end: it keeps the reports."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def send(self, kind: str, **fields: Any) -> bool:
        assert kind == "activity"
        self.names.append(fields["name"])
        return True


def test_a_long_phase_within_another_does_not_end_it() -> None:
    """The agent knows one name: leaving the inner one, it is the outer one's again."""
    reporter = Reporter()
    phases = Phases(cast("RankReporter", reporter))
    with Phase(phases, "eval"), Phase(phases, "forward"), Phase(phases, "compile"):
        pass
    assert reporter.names == ["eval", "compile", "eval", ""]
    assert phases.take().keys() == {"eval", "forward", "compile"}
