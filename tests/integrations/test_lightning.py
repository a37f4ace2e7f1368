"""Lightning's Trainer, the real one, interrupted and compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast import Session
from holdfast.errors import ScriptRefusedError
from tests.session.conftest import MakeAgent
from tests.session.harness import FakeAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).parent / "scripts" / "lightning_trainer.py"
VARIANTS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "accumulating": {"accumulate": 2},
    "workers": {"num_workers": 1},
    "kept workers": {"num_workers": 1, "persistent_workers": True},
    "stateful": {"loader": StatefulDataLoader},
}


class _CutOffError(Exception):
    """The training is cut off."""


def _stop() -> None:
    raise _CutOffError


def _life(agent: FakeAgent, folder: Path, until: int | None = None, **variant: Any) -> dict[str, Any]:
    """One epoch of the job in this process: from what the agent holds, to its end or ``until`` a step."""
    from tests.integrations.scripts import lightning_trainer as script  # noqa: PLC0415  (seconds to import)

    step = agent.common_step() if agent.epoch else 0
    restore = (step, agent.shard(0, step)) if step else None
    agent.epoch += 1
    callback = script.HoldfastCallback(Session(agent.environ(0, restore)))
    others = [] if until is None else [script.Before(until, _stop, callback)]
    module = script.fit(callback, str(folder), *others, **variant)
    assert callback.session.flush()
    return dict(module.state_dict())


@pytest.mark.parametrize(
    "variant",
    [pytest.param(each, marks=[pytest.mark.thorough] if each == "workers" else []) for each in VARIANTS],
)
def test_wherever_it_is_cut_off_it_ends_with_the_same_weights(
    make_agent: MakeAgent, tmp_path: Path, variant: str
) -> None:
    """After a step within an epoch, after one that validation followed, and between two epochs."""
    options = VARIANTS[variant]
    every = options.get("accumulate", 1)
    whole, broken = make_agent(1), make_agent(1)
    expected = _life(whole, tmp_path, **options)
    assert [each["step"] for each in whole.of("step")] == list(range(1, 20 // every + 1))
    for batch in (2, 4, 8, 14):
        with pytest.raises(_CutOffError):
            _life(broken, tmp_path, batch // every, **options)
        assert broken.common_step() == batch // every
    found = _life(broken, tmp_path, **options)
    assert [each["step"] for each in broken.of("step")] == list(range(14 // every + 1, 20 // every + 1))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_states_of_other_callbacks_are_of_any_kind(make_agent: MakeAgent, tmp_path: Path) -> None:
    """They come back with their types, though the reader of single objects trusts few of these."""
    from tests.integrations.scripts import lightning_trainer as script  # noqa: PLC0415

    agent, notes = make_agent(1), [script.Notes(), script.Notes()]
    for each, until in zip(notes, (6, 7), strict=True):
        step = agent.common_step() if agent.epoch else 0
        agent.epoch += 1
        callback = script.HoldfastCallback(
            Session(agent.environ(0, (step, agent.shard(0, step)) if step else None))
        )
        with pytest.raises(_CutOffError):
            script.fit(callback, str(tmp_path), script.Before(until, _stop, callback), each)
    assert type(notes[1].seen) is type(notes[0].seen)
    assert type(notes[1].words) is type(notes[0].words)
    assert (list(notes[0].seen), list(notes[1].seen)) == ([3, 4, 5], [4, 5, 6])
    assert notes[1].words == {"batch": 7}
    assert notes[1].seen.maxlen == 3


def test_a_finished_training_is_not_trained_again(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Killed after the last step: it goes straight to its end."""
    agent = make_agent(1)
    expected = _life(agent, tmp_path)
    found = _life(agent, tmp_path)
    assert agent.of("step") == []
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_the_last_step_is_saved_in_any_case(
    make_agent: MakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is within an epoch and followed by a validation: saved there like any other step, and once more at the end."""
    whole = Session.checkpoint
    calls: list[bool] = []

    def checkpoint(session: Session, state: Any, **options: Any) -> None:
        calls.append(bool(options.get("last")))
        whole(session, state, **options)

    monkeypatch.setattr(Session, "checkpoint", checkpoint)
    agent = make_agent(1)
    _life(agent, tmp_path)
    assert calls == [False] * 20 + [True]
    assert agent.common_step() == 20


@pytest.mark.thorough
@pytest.mark.timeout(1000)
def test_a_killed_process_is_gone_on_with(make_agent: MakeAgent, tmp_path: Path) -> None:
    """SIGKILL, and a fresh process: what lies in shared memory is enough."""
    agent = make_agent(1)
    expected = _life(make_agent(1), tmp_path)
    agent.start(SCRIPT, [tmp_path / "end.pt", tmp_path, 11])
    assert agent.join() == [-9], agent.output()
    step = agent.common_step()
    assert step == 11
    agent.start(SCRIPT, [tmp_path / "end.pt", tmp_path, -1], lambda rank: (step, agent.shard(rank, step)))
    assert agent.join() == [0], agent.output()
    found = torch.load(tmp_path / "end.pt")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("variant", ["shuffled", "accumulating", "kept workers", "stateful"])
def test_an_agent_changes_no_weights(make_agent: MakeAgent, tmp_path: Path, variant: str) -> None:
    """A training with saves draws the same order of data and the same dropout as one that was never watched."""
    from tests.integrations.scripts import lightning_trainer as script  # noqa: PLC0415

    options = VARIANTS[variant]
    watched = _life(make_agent(1), tmp_path, **options)
    plain = script.fit(script.Callback(), str(tmp_path), **options).state_dict()  # type: ignore[arg-type]
    assert all(torch.equal(watched[name], plain[name]) for name in plain)


def test_it_trains_without_an_agent(tmp_path: Path) -> None:
    """The callback does nothing: the weights are those of a training without it."""
    from tests.integrations.scripts import lightning_trainer as script  # noqa: PLC0415

    idle: Callable[..., Any] = script.HoldfastCallback
    with_it = script.fit(idle(Session({})), str(tmp_path)).state_dict()
    without = script.fit(script.Callback(), str(tmp_path)).state_dict()  # type: ignore[arg-type]
    assert all(torch.equal(with_it[name], without[name]) for name in without)


def test_another_number_of_ranks_is_refused() -> None:
    """The batches that were done are counted for the ranks that did them."""
    pytest.importorskip("pytorch_lightning")
    from holdfast.integrations.lightning import _Place  # noqa: PLC0415  (imports Lightning)

    place = _Place(SimpleNamespace(world_size=1))  # type: ignore[arg-type]
    with pytest.raises(ScriptRefusedError, match="saved by 2 ranks, and there are 1 now"):
        place.load_state_dict({"world_size": 2, "loops": {}})
