"""Simulated jobs that train on without a standby: smaller by whole replicas, and back."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import SettingsError
from holdfast.models.job import Parallelism
from holdfast.policies.accounting.lost_time import US, Account
from holdfast.simulate.job import live
from holdfast.simulate.life import Life
from holdfast.simulate.scenario import Scenario, Strategy, Variant
from tests.simulate.make import scenario
from tests.simulate.test_closed_forms import POLICY

TIMES = {
    "dispatch_s": 0.0,
    "evict_s": 0.0,
    "pause_s": 1.0,
    "shrink_s": 2.0,
    "grow_s": 3.0,
    "memory_s": 4.0,
    "restart_s": {1: 10.0},
    "requeue_s": {1: 1010.0},
    "reschedule_share": 1.0,  # 1,000 s until a machine is there
}
ELASTIC = Variant(strategy=Strategy.RESCHEDULE, elastic=True)
RIGID = Variant(strategy=Strategy.RESCHEDULE)


def lived(variant: Variant, **changes: Any) -> tuple[Scenario, Life]:
    facts: dict[str, Any] = {"days": 20, "machine_rate": 1 / 64 / 5, **changes}
    what = scenario(TIMES, {"every_step_share": 0.0}, variants=(variant,), **facts)
    return what, live(what, variant, POLICY, "1")


def lost(account: Account, phase: str) -> float:
    return account.by_phase().get(phase, 0.0)


def test_it_trains_on_while_a_machine_is_away() -> None:
    """Each loss costs a 64th of the thousand seconds, and two restarts; a job that cannot waits for all of them."""
    what, smaller = lived(ELASTIC)
    _, waits = lived(RIGID)
    count = waits.incidents
    assert count > 1
    assert lost(waits.account, "waiting") == pytest.approx(1000.0 * count)
    assert lost(smaller.account, "waiting") == 0.0
    # The machine is away from the swap on; the restart is the beginning of that time.
    away_s = 1000.0 - 2.0 - 4.0 - 10.0
    assert lost(smaller.account, "smaller_size") == pytest.approx(count * away_s / 64, rel=0.1)
    # Steps that were cut off count as restarting, at most one for each stop.
    assert lost(smaller.account, "restarting") == pytest.approx(10.0 * (2 * count + 1), abs=2.0 * count)
    assert smaller.account.by_class()["scale_job"] == pytest.approx((1 + 3 + 4 + 10) * count, abs=count)
    assert smaller.account.productive_us / US == pytest.approx(smaller.steps * what.step_s, rel=1e-3)
    assert smaller.account.worst_us < waits.account.worst_us


def test_whole_replicas_go_and_the_rest_stands_by() -> None:
    """Of 8 replicas of 8 machines one goes; its other seven machines serve the next losses."""
    layout = Parallelism(tp=8, pp=8)
    _, found = lived(ELASTIC, parallelism=layout)
    _, alone = lived(ELASTIC)
    one, eight = lost(alone.account, "smaller_size"), lost(found.account, "smaller_size")
    assert eight == pytest.approx(8 * one, rel=0.1)
    pool = Variant(strategy=Strategy.POOL, pool=0, elastic=True)
    _, pooled = lived(pool, parallelism=layout, machine_rate=20 / 64)
    _, without = lived(pool.model_copy(update={"elastic": False}), machine_rate=20 / 64)
    assert without.swaps_short == without.evictions
    assert 0 < pooled.swaps_short < 0.7 * pooled.evictions


def test_it_waits_rather_than_lose_half() -> None:
    """A layout that takes all machines for one replica cannot shrink."""
    _, found = lived(ELASTIC, parallelism=Parallelism(tp=8, pp=64))
    assert lost(found.account, "smaller_size") == 0.0
    assert lost(found.account, "waiting") > 0.0


@pytest.mark.parametrize("changes", [{"strategy": "requeue"}, {"checkpoint_s": 1800}])
def test_it_needs_its_state_in_memory(changes: dict[str, Any]) -> None:
    """Neither a requeued job has that, nor one that saves now and then."""
    with pytest.raises((SettingsError, ValueError), match="elastic: expected a strategy"):
        Variant.model_validate({"elastic": True, **changes})
