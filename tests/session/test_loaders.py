"""torchdata's loaders after a restore: the data and the random numbers of a run that was not interrupted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.errors import ScriptRefusedError
from tests.session.conftest import MakeAgent
from tests.session.small import Counter, session_of

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]
BATCHES, STEPS, CUT = 8, 20, 13


class Training:
    """A script with a sampler that is given its epoch, as torch's documentation shows it, and dropout."""

    def __init__(self, workers: int, wrapped: bool) -> None:
        data = torch.arange(2 * 2 * BATCHES)
        self.sampler = DistributedSampler(data, num_replicas=2, rank=0, seed=1)  # type: ignore[var-annotated, arg-type]
        self.loader: Any = StatefulDataLoader(
            data,  # type: ignore[arg-type]
            batch_size=2,
            sampler=self.sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        self.epoch = Counter()
        self.state = {"loader": Wrapped(self.loader) if wrapped else self.loader, "epoch": self.epoch}
        self.seen: list[Any] = []

    def run(self, session: Any, steps: int) -> None:
        step = session.restore(self.state)
        while step < steps:
            self.sampler.set_epoch(self.epoch.value)
            for batch in self.loader:
                step += 1
                self.seen.append((step, self.epoch.value, batch.tolist(), torch.rand(1).item()))
                session.step(step)
                session.checkpoint(self.state)
                if step == steps:
                    break
            else:
                self.epoch.value += 1
        assert session.flush()


class Wrapped:
    """As accelerate wraps it: the loader is inside."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state["inner"])


@pytest.mark.parametrize(
    ("workers", "wrapped", "cut"),
    [
        (0, False, CUT),
        (1, True, CUT),
        pytest.param(2, False, CUT, marks=pytest.mark.thorough),
        pytest.param(0, False, 2 * BATCHES, marks=pytest.mark.thorough),
        pytest.param(2, False, 2 * BATCHES, marks=pytest.mark.thorough),
        pytest.param(1, True, 2 * BATCHES, marks=pytest.mark.thorough),
    ],
)
def test_the_order_of_the_samplers_epoch_goes_on(
    make_agent: MakeAgent, workers: int, wrapped: bool, cut: int
) -> None:
    """The script gives the sampler its epoch after the restore: no worker may have been sent indices before."""
    torch.manual_seed(3)
    whole = Training(workers, wrapped)
    whole.run(session_of(make_agent()), STEPS)

    agent = make_agent()
    torch.manual_seed(3)
    first = Training(workers, wrapped)
    first.run(session_of(agent), cut)
    torch.manual_seed(99)
    second = Training(workers, wrapped)
    second.run(session_of(agent, (cut, agent.shard(0, cut))), STEPS)
    assert [*first.seen, *second.seen] == whole.seen


@pytest.mark.parametrize("workers", [0, 1])
def test_an_order_that_would_be_drawn_again_is_refused(make_agent: MakeAgent, workers: int) -> None:
    """Torch's own random samplers have no state: after a restore samples came twice, and others never."""
    data = torch.arange(8)
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=100)  # type: ignore[arg-type]
    loader: Any = StatefulDataLoader(data, batch_size=2, sampler=sampler, num_workers=workers)  # type: ignore[arg-type]
    with pytest.raises(ScriptRefusedError, match=r"state\['loader'\].*RandomSampler.*an EpochLoader"):
        session_of(make_agent()).restore({"loader": loader})


def test_such_an_order_inside_of_a_part_is_refused_at_the_first_save(make_agent: MakeAgent) -> None:
    """Where the part asks the loader for its state; one that it only holds is no one's concern."""
    data = torch.arange(8)
    sampler = torch.utils.data.RandomSampler(data)  # type: ignore[arg-type]
    loader: Any = StatefulDataLoader(data, batch_size=2, sampler=sampler)  # type: ignore[arg-type]
    holder = Counter()
    vars(holder)["loader"] = loader
    session = session_of(make_agent())
    session.restore(holds := {"holder": holder})
    session.step(1)
    session.checkpoint(holds)
    assert session.flush()
    session = session_of(make_agent())
    session.restore(state := {"loader": Wrapped(loader)})
    session.step(1)
    with pytest.raises(ScriptRefusedError, match=r"state\['loader'\].*RandomSampler.*an EpochLoader"):
        session.checkpoint(state)
    assert "ask" not in StatefulDataLoader.state_dict.__name__


def test_an_order_that_torchdata_keeps_is_not_refused(make_agent: MakeAgent) -> None:
    """``shuffle=True`` takes torchdata's sampler."""
    loader: Any = StatefulDataLoader(torch.arange(8), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    assert session_of(make_agent()).restore({"loader": loader}) == 0
