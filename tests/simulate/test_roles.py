"""Simulated roles: replicas that fail, start again by the production policies, and stop the trainer or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.accounting.lost_time import US
from holdfast.policies.config.policy import Policy
from holdfast.policies.roles import restart
from holdfast.policies.roles.decide import RETRY_S
from holdfast.simulate.job import live
from holdfast.simulate.life import Life
from holdfast.simulate.scenario import DAY_S, Scenario, Variant
from holdfast.simulate.simulated_role import SimulatedRole
from holdfast.simulate.standstill import Slower, Stand, Stretch
from tests.cli.conftest import Cli, cli
from tests.simulate.make import scenario

__all__ = ["cli"]

POLICY = Policy.load()
ROOT = Path(__file__).parents[2]
ALONE = Variant(name="alone", roles=False)


def job(roles: dict[str, dict[str, Any]], **changes: Any) -> Scenario:
    """A job with roles that saves without stalls; no machine fails unless ``machine_rate`` is set."""
    given = {name: SimulatedRole.model_validate(role) for name, role in roles.items()}
    facts: dict[str, Any] = {"days": 50, "machine_rate": 0.0, "step_s": 0.01, "roles": given, **changes}
    return scenario({"restart_s": {1: 10.0}, "memory_s": 0.0}, {"every_step_share": 0.0}, **facts)


def lived(what: Scenario, variant: Variant | None = None, seed: str = "1") -> Life:
    return live(what, variant or what.variants[0], POLICY, seed)


def test_a_role_is_there_for_as_long_as_the_closed_form_says() -> None:
    """An hour between failures, a minute's start, a pause of 20 s: 3600 of 3680 s, and 3660 with a process."""
    rule = {"pause_s": 20, "longest_pause_s": 20}
    what = job({"w": {"replicas": 10, "hours_between_failures": 1, "start_s": 60, "restart": rule}})
    found = lived(what).roles["w"]
    assert found.wanted_s == 10 * 50 * DAY_S
    assert found.ready_s / found.wanted_s == pytest.approx(3600 / 3680, abs=0.001)
    assert found.ran_s / found.wanted_s == pytest.approx(3660 / 3680, abs=0.001)
    assert found.failures == pytest.approx(found.wanted_s / 3680, rel=0.03)
    assert 0 <= found.failures - found.restarts <= 10
    assert (found.moves, found.asked, found.trainer_s) == (0, 0, 0)
    per_day = job({"w": {"replicas": 10, "failures_per_day": 24, "start_s": 60, "restart": rule}})
    assert lived(per_day).roles["w"].failures == found.failures


def test_roles_leave_the_trainer_its_faults_and_its_time() -> None:
    """A fault that stops nothing costs no trainer time, to the microsecond; with and without, faults are the same."""
    what = job({"w": {"replicas": 4, "failures_per_day": 3, "start_s": 60}}, machine_rate=1 / 64)
    with_them, alone = lived(what), lived(what, ALONE)
    assert with_them.incidents > 10
    assert with_them.account == alone.account
    assert alone.roles == {}
    assert lived(what, seed="2").account != alone.account


def test_other_replicas_do_not_change_the_faults_of_one() -> None:
    """Each has its own: what is done about one, or a further one, moves no fault of another."""
    one = job({"w": {"failures_per_day": 5}})
    slower = job({"v": {"failures_per_day": 9}, "w": {"failures_per_day": 5}}, machine_rate=1 / 64)
    assert lived(one).roles["w"].failures == lived(slower).roles["w"].failures > 100


@pytest.mark.parametrize("stops", [1.0, 0.25])
def test_an_ordered_role_stops_the_trainer_that_needs_it(stops: float) -> None:
    """It loses the time in which any replica was away while it would have trained, or a share of that."""
    cache = {
        "kind": "ordered",
        "replicas": 2,
        "failures_per_day": 2,
        "start_s": 300,
        "stops": stops,
        "restart": {"pause_s": 0},
    }
    what = job({"trainer": {"needs": ["cache"]}, "cache": cache})
    found, alone = lived(what), lived(what, ALONE)
    lost_s = found.roles["cache"].trainer_s
    assert found.account.by_class()["role cache"] == pytest.approx(lost_s, abs=0.01)
    assert found.account.by_phase()["waiting"] == pytest.approx(lost_s, abs=0.01)
    # Away together now and then: the trainer stands once. The first start is beside the trainer's own, of ten seconds.
    away_s = found.roles["cache"].wanted_s - found.roles["cache"].ready_s
    assert 0.95 * stops * (away_s - 600) < lost_s < stops * (away_s - 300)
    gone_s = (alone.account.productive_us - found.account.productive_us) / US
    assert gone_s == pytest.approx(lost_s, rel=0.001)
    assert found.steps * what.step_s == pytest.approx(found.account.productive_us / US, rel=1e-4)


def test_the_trainer_stands_once_for_what_it_does_not_do_anyway() -> None:
    """While it recovers it loses nothing to a role that starts again with it, but for what that takes longer."""
    role = {"kind": "ordered", "start_s": 40, "stops": 1, "with_trainer": "restart"}
    what = job({"trainer": {"needs": ["cache"]}, "cache": role}, machine_rate=0.5 / 64)
    found, alone = lived(what), lived(what, ALONE)
    # The start of the processes takes 10 s, beside which it begins; a machine that leaves takes it along sometimes.
    again = found.roles["cache"]
    assert again.restarts >= found.restarts > 10
    least = 30 * (found.restarts + 1)
    assert least - 1 <= again.trainer_s <= least + again.moves * 70
    assert found.account.productive_us < alone.account.productive_us


def test_the_rule_is_the_policys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end of a replica is put before the function that agents ask; its answer counts."""
    asked: list[restart.ReplicaEnd] = []
    real = restart.after

    def after(
        ended: restart.ReplicaEnd, rule: Any, failures: int, restarts: Sequence[float], now: float
    ) -> restart.RestartDecision:
        asked.append(ended)
        return real(ended, rule, failures, restarts, now)

    monkeypatch.setattr(restart, "after", after)
    found = lived(job({"w": {"failures_per_day": 3, "bad_starts": 0.3, "start_s": 5}})).roles["w"]
    assert len(asked) == found.failures > 100
    assert {each.announced for each in asked} == {True, False}
    assert all(each.lasted_s == pytest.approx(5.0) for each in asked if not each.announced)


def test_pauses_double_and_the_replica_moves() -> None:
    """A machine on which it cannot start: four bad starts with 1, 2, 4 s between, and it works elsewhere."""
    role = {
        "hours_between_failures": 240,
        "machine_share": 1,
        "start_s": 10,
        "restart": {"pause_s": 1, "longest_pause_s": 30, "failures": 4},
    }
    what = job({"w": role}, days=200)
    found = lived(what).roles["w"]
    assert found.moves > 10
    assert found.failures == 5 * found.moves
    assert found.restarts == 5 * found.moves
    # 1 s after the good run, four starts with 1 + 2 + 4 s between them, and the start elsewhere.
    assert found.wanted_s - found.ready_s == pytest.approx(10 + found.moves * (1 + 4 * 10 + 7 + 10))


def test_a_person_is_asked_where_there_is_no_other_machine() -> None:
    """Its start fails on the only machine that it may use: a person is asked each time that it was tried again."""
    role = {
        "machines": 1,
        "machine_share": 1,
        "hours_between_failures": 24,
        "start_s": 1,
        "restart": {"pause_s": 0, "failures": 2},
    }
    found = lived(job({"w": role}, machines=1, days=40)).roles["w"]
    assert found.moves == 0
    # After the first failure it never works again: two starts every RETRY_S.
    assert found.asked == pytest.approx((found.wanted_s - found.ready_s) / (RETRY_S + 3), rel=0.01)


def test_the_replicas_of_a_lost_machine_are_placed_elsewhere() -> None:
    """Each is away from the loss until it surely ended, and for a start more."""
    what = job({"w": {"replicas": 64, "start_s": 7, "move_s": 50}}, machine_rate=0.2 / 64)
    life = lived(what)
    found = life.roles["w"]
    assert found.failures == 0
    # Spread: one replica on each machine, then now and then two or none.
    assert 0.5 * life.evictions < found.moves < 2 * life.evictions
    away_s = found.wanted_s - found.ready_s - 64 * 7
    noticed_s = 1 + 5 + 5 + 10  # the playbook until the machine is out; then it is moved and starts
    assert away_s == pytest.approx(found.moves * (noticed_s + 50 + 7), rel=0.1)


def test_what_needs_a_role_starts_after_it() -> None:
    """Workers need the cache and the trainer: none is there before both are."""
    roles = {
        "cache": {"kind": "ordered", "start_s": 100},
        "w": {"needs": ["cache", "trainer"], "start_s": 5},
        "v": {"needs": ["trainer"], "start_s": 5},
    }
    found = lived(job(roles)).roles
    assert found["cache"].wanted_s - found["cache"].ready_s == pytest.approx(100)
    assert found["w"].wanted_s - found["w"].ready_s == pytest.approx(105)
    assert found["v"].wanted_s - found["v"].ready_s == pytest.approx(15)


def test_the_example_of_the_page_is_a_scenario() -> None:
    """The caches cost its trainer what fails of them; a start later than `good_after_s` would make it endless."""
    what = Scenario.load(ROOT / "examples" / "simulate" / "roles.yaml")
    found = lived(what.model_copy(update={"machines": 64, "days": 3.0}))
    assert found.roles["rollout"].ready_s > 0.99 * found.roles["rollout"].wanted_s
    assert found.roles["cache"].trainer_s == pytest.approx(120 * found.roles["cache"].failures, abs=121)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "roles: {w: {stops: 0.5}}",
            "roles.w.stops = 0.5: only an ordered role that the trainer needs stops it",
        ),
        ("roles: {w: {failures_per_day: 1, hours_between_failures: 3}}", "expected one of them"),
        ("roles: {w: {needs: [v]}}", "roles.w.needs = 'v': there is no such role"),
        ("roles: {w: {kind: rigid}}", "roles.w.kind = rigid"),
        ("roles: {w: {replicas: 0}}", "roles.w.replicas = 0: expected at least 1"),
        ("roles: {w: {machines: 9999}}", "roles.w.machines = 9999: the job has 1200"),
        ("roles: {trainer: {failures_per_day: 1}}", "roles.trainer: only `needs` may stand here"),
        ("roles: {w: {start_s: 60, bad_starts: 0.1}}", "a start that fails so late counts as a good run"),
        ("roles: {w: {sometimes: 1}}", "roles.w.sometimes is not a known key"),
    ],
)
def test_a_mistake_is_named(cli: Cli, tmp_path: Path, text: str, part: str) -> None:
    """In one line, before anything is simulated."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    result = cli("simulate", str(path))
    assert result.status == 1
    assert part in result.err


def test_the_command_shows_each_role_with_and_without(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a table of its own, and as JSON."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text("roles: {worker: {replicas: 3, failures_per_day: 5, start_s: 20}}\n")
    fast = ("--machines", "64", "--days", "3", "--replications", "3", "--jobs", "1", "--strategy", "pool")
    result = cli("simulate", str(path), *fast, "--without-roles", "--json")
    assert result.status == 0, result.err
    first, second = json.loads(result.out)["outcomes"]
    assert second["title"] == first["title"] + ", no roles"
    assert second["roles"] == {}
    assert 0.99 < first["roles"]["worker"]["ready"]["mean"] < 1
    assert first["ettr"] == second["ettr"]
    shown = cli("simulate", str(path), *fast).out
    assert "TRAINER LOST" in shown
    assert "worker" in shown
    assert "TRAINER LOST" not in cli("simulate", *fast).out
    missing = cli("simulate", *fast, "--without-roles")
    assert "--without-roles: expected a scenario file that has `roles`" in missing.err
    path.write_text("roles: {worker: {machines: 100}}\n")
    small = cli("simulate", str(path), *fast)
    assert "--machines 64: roles.worker.machines = 100: the job has 64" in small.err


PARTS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from([0.0, 0.25, 1.0])), max_size=6
)


@given(PARTS, st.integers(0, 80), st.integers(0, 60))
def test_time_that_was_worked_is_all_time_but_what_it_stood(
    parts: list[tuple[int, int, float]], began: int, length: int
) -> None:
    """Whatever the order of the times: the two add up, and each second of work is at one time."""
    at, slower = 0.0, []
    for gap, lasts, part in parts:
        slower.append(Slower(at + gap, at + gap + lasts, "r", part))
        at += gap + lasts
    now = float(began + length)
    stands: list[Stand] = [
        each.within(began, now) for each in slower if each.begin < now and each.end > began
    ]
    stretch = Stretch(float(began), now, [each for each in stands if each.seconds > 0])
    moving = list(stretch.moving(stretch.began, now))
    assert sum(end - begin for begin, end in moving) == pytest.approx(stretch.worked_s)
    assert stretch.worked_s + sum(each.seconds for each in stretch.stands) == pytest.approx(length)
    half = stretch.at(stretch.worked_s / 2)
    assert sum(end - begin for begin, end in stretch.moving(stretch.began, half)) == pytest.approx(
        stretch.worked_s / 2
    )
    assert stretch.began <= half <= now
