"""Refuse, at the first save, an order of calls that would lose or mix up steps at a restart."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.errors import CheckpointError, ScriptRefusedError
from holdfast.session.agreement import Group
from tests.session.conftest import MakeAgent
from tests.session.small import Counter, run, session_of, train, training

pytestmark = pytest.mark.torch


def test_a_script_that_never_restores_is_refused(make_agent: MakeAgent) -> None:
    """After a fault it would begin at step 0 again."""
    session, state = session_of(make_agent()), training()
    session.step(1, loss=train(state))
    with pytest.raises(ScriptRefusedError, match=r"without Session\.restore\(\)"):
        session.checkpoint(state)


def test_a_checkpoint_before_the_step_is_refused(make_agent: MakeAgent) -> None:
    """The weights of step 1 would be those of step 0."""
    session, state = session_of(make_agent()), training()
    assert not session.restore(state)
    train(state)
    with pytest.raises(
        ScriptRefusedError, match=r"before Session\.step\(\), after a step of state\['optimizer'\]"
    ):
        session.checkpoint(state)


def test_a_checkpoint_of_a_state_that_has_not_moved_is_no_error(make_agent: MakeAgent) -> None:
    """Before the first step nothing is saved; optimizers that are not in the state may have moved."""
    session, state = session_of(make_agent()), training()
    train(training())
    session.restore(state)
    session.checkpoint(state)
    train(state)
    session.step(1)
    session.checkpoint(state)
    assert session.flush()
    assert (session.counts.unstepped, session.counts.saved) == (1, 1)


@pytest.mark.parametrize(
    ("restored", "saved", "why"),
    [
        ({}, {"ema": Counter()}, r"'ema': Session\.checkpoint\(\) was given this part"),
        ({"ema": Counter()}, {}, r"'ema': Session\.restore\(\) was given this part"),
        ({"ema": holdfast.Part(None)}, {"ema": Counter()}, r"'ema': Session\.checkpoint\(\)"),
    ],
)
def test_a_save_that_the_restore_would_refuse_is_refused(
    make_agent: MakeAgent, restored: dict[str, Any], saved: dict[str, Any], why: str
) -> None:
    """On the first day, not at the first fault."""
    session, state = session_of(make_agent()), training()
    session.restore(state | restored)
    session.step(1, loss=train(state))
    with pytest.raises(ScriptRefusedError, match=why):
        session.checkpoint(state | saved)


@pytest.mark.parametrize("restored", [holdfast.Part(None), holdfast.Part(Counter(), strict=False)])
def test_parts_that_a_restore_may_do_without(make_agent: MakeAgent, restored: holdfast.Part) -> None:
    """One that is left behind, and one that begins with what the script made."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state | {"old": restored})
    session.step(1, loss=train(state))
    session.checkpoint(state)
    assert session.flush()
    fresh = training()
    again = session_of(agent, (1, agent.shard(0, 1)))
    assert again.restore(fresh | {"old": restored}) == 1


def test_a_restore_in_the_middle_of_training_is_refused(make_agent: MakeAgent) -> None:
    """Twice before the first step changes nothing; later the state would go back, and the steps not."""
    agent = make_agent()
    state = training()
    run(session_of(agent), state, 2)
    session, fresh = session_of(agent, (2, agent.shard(0, 2))), training()
    assert session.restore(fresh) == session.restore(fresh) == 2
    session.step(3, loss=train(fresh))
    with pytest.raises(ScriptRefusedError, match=r"restore\(\) was called after Session\.step\(\)"):
        session.restore(fresh)


@pytest.mark.parametrize(("failed", "raised"), [(2, CheckpointError), (3, ScriptRefusedError)])
def test_a_rank_learns_whether_the_script_must_change_for_another(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, failed: int, raised: type[CheckpointError]
) -> None:
    """A full disk there may be over at the next start; what the script gives is refused again."""
    session, state = session_of(make_agent()), training()
    session.restore(state)
    session.step(1, loss=train(state))
    monkeypatch.setattr(Group, "agree", lambda *_, **__: ([0, failed], True))
    with pytest.raises(raised, match="cannot be saved on another rank") as caught:
        session.checkpoint(state)
    assert type(caught.value) is raised


def test_a_part_that_another_rank_cannot_reach_leaves_the_first_save_to_a_later_step(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rank ends; each counts the step as not saved."""
    session, state = session_of(make_agent()), training()
    session.restore(state)
    with monkeypatch.context() as once:
        once.setattr(Group, "agree", lambda *_, **__: ([0, 1], True))
        session.step(1, loss=train(state))
        session.checkpoint(state)
    assert session.counts.failed == 1
    session.step(2, loss=train(state))
    session.checkpoint(state)
    assert session.flush()
    assert (session.counts.failed, session.counts.common) == (1, 1)


class Broken(Counter):
    """Its own code fails."""

    def state_dict(self) -> dict[str, Any]:
        raise KeyError("epoch")


@pytest.mark.parametrize(
    "extra", [Broken(), [1, 2], {"lr": 0.1}], ids=["its own error", "a list", "plain values"]
)
def test_a_state_that_cannot_be_saved_is_the_scripts(make_agent: MakeAgent, extra: Any) -> None:
    """By the exception's name the gateway knows that no retry helps."""
    session, state = session_of(make_agent()), training() | {"extra": extra}

    def one_step() -> None:
        session.restore(state)
        session.step(1, loss=train(state))
        session.checkpoint(state)

    with pytest.raises(ScriptRefusedError, match=r"extra|epoch"):
        one_step()


def test_rules_of_a_part_that_would_fail_at_the_first_resize_are_refused() -> None:
    """When the part is made: one of two functions that need each other, or no function."""
    with pytest.raises(ScriptRefusedError, match=r"Part\(merge=\.\.\.\): expected merge and split together"):
        holdfast.Part(Counter(), merge=list)
    with pytest.raises(ScriptRefusedError, match=r"Part\(split=\.\.\.\): expected merge and split together"):
        holdfast.Part(Counter(), split=lambda whole, *_: whole)
    with pytest.raises(ScriptRefusedError, match=r"Part\(merge=3\): expected a function"):
        holdfast.Part(Counter(), merge=3)  # type: ignore[arg-type]


def test_another_overlap_is_refused(make_agent: MakeAgent) -> None:
    """It would be the default in silence."""
    session, state = session_of(make_agent()), training()
    session.restore(state)
    session.step(1)
    with pytest.raises(ValueError, match=r"overlap='none'\): expected 'optimizer' or 'all'"):
        session.checkpoint(state, overlap="none")  # type: ignore[arg-type]
