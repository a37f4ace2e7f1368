"""Saves from a GPU: nothing waits for it, nothing is mixed, and its memory is left alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import nn

from holdfast.session import Session
from holdfast.storage.checkpoints.save import pinned
from tests.gpu.saving import agent_in_memory, child, device, report, saved_values
from tests.session.harness import FakeAgent
from tests.session.small import session_of

NBYTES, TENSORS = 2 << 30, 8
"""Of a state whose copy takes so long that whatever does not wait for it is seen."""
STEPS = 4
NOT_REGISTERED = 713
"""``cudaErrorHostMemoryNotRegistered``."""


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_nothing_on_the_path_of_a_step_waits_for_the_gpu(backend: str) -> None:
    """Once the first saves are made: a step that waits leaves the GPU without work."""
    found = child("tests.gpu.scripts.steady", [backend], 60.0)
    report(f"steady-{backend}", found)
    for name, counts in found.items():
        assert counts == {"saved": 6, "failed": 0, "torn": 0}, (name, counts)


class Numbers(nn.Module):
    """Parameters whose every number is that of the step."""

    def __init__(self, nbytes: int = NBYTES) -> None:
        super().__init__()
        self.parts = nn.ParameterList(
            torch.zeros(nbytes // TENSORS // 4, device=device()) for _ in range(TENSORS)
        )


class Counting(torch.optim.Optimizer):
    """An optimizer of a script's own, which torch's version counters do not see."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Count."""
        assert closure is None
        for group in self.param_groups:
            for each in group["params"]:
                each.data.add_(1.0)


@dataclass
class Changing:
    """A way to change the state in place, and how it is saved."""

    model: Numbers
    optimizer: torch.optim.Optimizer | None
    change: Callable[[], None]
    before: Callable[[Session], None] = lambda session: None
    """Called before each change, with the session."""
    overlap: Any = "optimizer"

    @property
    def state(self) -> dict[str, Any]:
        """The state to save."""
        return {"model": self.model} | ({"optimizer": self.optimizer} if self.optimizer else {})


def _descending(model: Numbers) -> torch.optim.Optimizer:
    for each in model.parts:
        each.grad = torch.full_like(each, -1.0)
    return torch.optim.SGD(model.parameters(), lr=1.0)


def of_torch(model: Numbers) -> Changing:
    """An optimizer of torch."""
    optimizer = _descending(model)
    return Changing(model, optimizer, cast(Any, optimizer.step))


def in_a_side_stream(model: Numbers) -> Changing:
    """An optimizer of torch that runs in another stream, which waits for no other."""
    optimizer, side = _descending(model), torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def change() -> None:
        with torch.cuda.stream(side):
            optimizer.step()

    return Changing(model, optimizer, change)


def of_the_script(model: Numbers) -> Changing:
    """An optimizer of the script's own, under torch's base class."""
    optimizer = Counting(model.parameters())
    return Changing(model, optimizer, optimizer.step)


def _add(model: Numbers) -> None:
    for each in model.parts:
        each.data.add_(1.0)


def without_optimizer(model: Numbers) -> Changing:
    """Nothing in the state shows who changes the parameters."""
    return Changing(model, None, lambda: _add(model))


def without_optimizer_in_a_side_stream(model: Numbers) -> Changing:
    """The same in another stream."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def change() -> None:
        with torch.cuda.stream(side):
            _add(model)

    return Changing(model, None, change)


def past_the_optimizer(model: Numbers) -> Changing:
    """The state's optimizer never steps; something else changes its parameters, uncounted."""
    return Changing(model, _descending(model), lambda: _add(model))


def past_the_optimizer_counted(model: Numbers) -> Changing:
    """The same, noticed by torch's version counters."""

    @torch.no_grad()
    def change() -> None:
        for each in model.parts:
            each.add_(1.0)

    return Changing(model, _descending(model), change)


def after_wait(model: Numbers) -> Changing:
    """As ``overlap="all"`` asks for."""
    return Changing(model, None, lambda: _add(model), lambda session: session.wait(), "all")


def after_wait_in_a_side_stream(model: Numbers) -> Changing:
    """The change is in another stream than the one that called ``wait``."""
    made = without_optimizer_in_a_side_stream(model)
    return Changing(model, None, made.change, lambda session: session.wait(), "all")


def _recording(model: Numbers) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    """Return an optimizer, and a function that records its step and returns the graph."""
    optimizer, graph = _descending(model), torch.cuda.CUDAGraph()

    def record() -> None:
        with torch.cuda.graph(graph):
            optimizer.step()

    record.graph = graph  # type: ignore[attr-defined]
    return optimizer, record


def recorded_before_the_session(model: Numbers) -> Changing:
    """A CUDA graph that was recorded when no hook of a session was there."""
    optimizer, record = _recording(model)
    record()
    return Changing(model, optimizer, record.graph.replay)  # type: ignore[attr-defined]


def recorded_before_and_eager_at_first(model: Numbers) -> Changing:
    """The same; the first two steps are not replays, so that the session's hook sees them."""
    optimizer, record = _recording(model)
    record()
    steps: list[int] = []

    def change() -> None:
        steps.append(1)
        (optimizer.step if len(steps) < 3 else record.graph.replay)()  # type: ignore[attr-defined]

    return Changing(model, optimizer, change)


def recorded_after_the_session(model: Numbers) -> Changing:
    """A CUDA graph that is recorded before its first replay."""
    optimizer, record = _recording(model)
    done: list[bool] = []

    def change() -> None:
        if not done:
            done.append(True)
            record()
        record.graph.replay()  # type: ignore[attr-defined]

    return Changing(model, optimizer, change)


WAYS = (
    of_torch,
    in_a_side_stream,
    of_the_script,
    without_optimizer,
    without_optimizer_in_a_side_stream,
    past_the_optimizer,
    past_the_optimizer_counted,
    after_wait,
    after_wait_in_a_side_stream,
    recorded_before_the_session,
    recorded_before_and_eager_at_first,
    recorded_after_the_session,
)


@pytest.fixture(scope="module")
def agent() -> Iterator[FakeAgent]:
    """One for all, so that its files have their pages."""
    with agent_in_memory() as made:
        yield made


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_save_is_of_one_moment(way: Callable[[Numbers], Changing], agent: FakeAgent) -> None:
    """The state is changed in place right after each ``checkpoint``: a save has nothing of it, or does not count."""
    changing = way(Numbers())
    session = session_of(agent)
    session.restore(changing.state)
    for step in range(1, STEPS + 1):
        changing.before(session)
        changing.change()
        torch.cuda.synchronize()  # so that the GPU has nothing to do when the copy begins: it races at once
        session.step(step)
        session.checkpoint(changing.state, overlap=changing.overlap)
    changing.before(session)
    changing.change()
    session.step(STEPS + 1)
    assert session.flush()
    counts = session.counts
    found = saved_values(agent.shards)
    report(f"mixed-{way.__name__}", {"values": found, "saved": counts.saved, "torn": counts.torn})
    session.close(10)
    assert found
    assert counts.failed == 0
    for step, ends in found.items():
        assert ends == (float(step), float(step)), f"step {step} was saved as {found}"


def _slots(session: Session) -> list[Any]:
    writer = session._saver._planner.writer
    assert writer is not None
    return list(writer._slots.values())


def test_pages_of_shared_memory_are_pinned_as_long_as_they_are_mapped() -> None:
    """Else copies would not be asynchronous, or CUDA would hold pages of a mapping that is gone."""
    with agent_in_memory() as agent:
        changing, session = of_torch(Numbers(64 << 20)), session_of(agent)
        session.restore(changing.state)
        for step in (1, 2):
            changing.change()
            session.step(step)
            session.checkpoint(changing.state)
        assert session.flush()
        slots = _slots(session)
        assert len(slots) == 2
        assert all(slot.buf.pinned is not None for slot in slots)
        assert all(
            target.view.is_pinned() for slot in slots for target in slot.targets if target.view.numel()
        )
        addresses = [slot.targets[0].view.data_ptr() - slot.targets[0].offset for slot in slots]
        session.close(10)
        del session, slots
        gc.collect()
        answers = [int(pinned._cuda_runtime().cudaHostUnregister(each)) for each in addresses]
        pinned._take_error()
        assert answers == [NOT_REGISTERED] * 2, "a registration outlived its mapping"


def test_saves_take_no_memory_of_the_gpu() -> None:
    """Neither of torch's allocator nor beside it."""
    with agent_in_memory() as agent:
        changing, session = of_torch(Numbers(256 << 20)), session_of(agent)
        session.restore(changing.state)
        seen: list[tuple[int, int]] = []
        for step in range(1, 13):
            changing.change()
            session.step(step)
            session.checkpoint(changing.state)
            torch.cuda.synchronize()
            seen.append((torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]))
        assert session.flush()
        counts = session.counts
        session.close(10)
    report("memory-of-saves", {"allocated": [each for each, _ in seen], "free": [each for _, each in seen]})
    assert counts.saved == 12
    assert seen[2][0] == seen[-1][0], "torch's allocator holds more at each save"
    assert seen[2][1] - seen[-1][1] < (8 << 20), "the GPU has less free memory with each save"


def _full(leave: int) -> torch.Tensor:
    """Return what fills the GPU but for ``leave`` bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.empty(torch.cuda.mem_get_info()[0] - leave, dtype=torch.uint8, device=device())


@pytest.mark.parametrize("order", ["contiguous", "channels_last"])
def test_a_gpu_that_is_full_is_saved_all_the_same(order: str) -> None:
    """A copy needs no room on the GPU that would be as large as what is copied."""
    with agent_in_memory() as agent:
        model = nn.Conv2d(4096, 2048, 4, bias=False, device=device())  # 512 MiB
        if order == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        with torch.no_grad():
            model.weight.copy_(
                torch.arange(2048.0, device=device()).reshape(-1, 1, 1, 1).expand(model.weight.shape)
            )
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        state, session = {"model": model, "optimizer": optimizer}, session_of(agent)
        session.restore(state)
        optimizer.step()
        filler = _full(96 << 20)
        try:
            for step in (1, 2, 3):
                optimizer.step()
                session.step(step)
                session.checkpoint(state)
            assert session.flush()
            counts = session.counts
            report(f"full-{order}", {"saved": counts.saved, "failed": counts.failed})
            assert (counts.saved, counts.failed) == (3, 0)
            assert set(saved_values(agent.shards).values()) == {(0.0, 2047.0)}
        finally:
            del filler
            session.close(10)
            torch.cuda.empty_cache()


def test_a_graph_is_recorded_while_a_save_is_under_way() -> None:
    """The thread that waits for a copy does nothing that a recording in another thread does not allow."""
    found = child("tests.gpu.scripts.recording", [], 60.0)
    report("recording", found)
    assert found == {"saved": 8, "failed": 0, "torn": 0, "number": 500.0}
