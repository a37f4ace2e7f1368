"""Simulated jobs whose ranks keep their processes: restarted in less time, a first death before its diagnosis."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import AlertKind
from holdfast.policies.accounting.lost_time import Account
from holdfast.policies.config.policy import Policy
from holdfast.simulate.job import Life, live
from holdfast.simulate.scenario import Cause, Sign, Strategy, Symptom, Variant
from tests.simulate.make import LOST, scenario

POLICY = Policy.load()
TIMES = {
    "dispatch_s": 0.0,
    "pause_s": 1.0,
    "evict_s": 0.0,
    "swap_s": 0.0,
    "memory_s": 0.0,
    "diagnose_s": 100.0,
    "restart_s": {1: 50.0},
    "kept_s": {1: 10.0},
}
DIES = Symptom(
    count=1,
    causes={Cause.TRANSIENT: 1},
    signs=(Sign(kind=AlertKind.RANK_EXIT, evidence={"signal": "SIGKILL", "exit_code": -9}),),
    detect_s=0,
    timeout_s=600,
    found_share=1,
)


def lived(*, keep: bool, **changes: Any) -> Life:
    variant = Variant(strategy=Strategy.UNLIMITED, keep=keep)
    facts: dict[str, Any] = {
        "days": 20,
        "machine_rate": 0.0,
        "mix_rate": 1 / 64 / 2,
        "symptoms": {"lost": LOST, "dies": DIES},
        **changes,
    }
    what = scenario(TIMES, {"every_step_share": 0.0}, variants=(variant,), **facts)
    return live(what, variant, POLICY, "1")


def lost(account: Account, phase: str) -> float:
    return account.by_phase().get(phase, 0.0)


def test_a_first_death_costs_no_diagnosis_and_a_short_restart() -> None:
    """The job's first start is of new processes; each death costs a pause and a restart in its processes."""
    kept, fresh = lived(keep=True), lived(keep=False)
    assert kept.incidents == fresh.incidents > 3
    assert lost(fresh.account, "diagnosing") == pytest.approx(100.0 * fresh.incidents)
    assert lost(fresh.account, "restarting") == pytest.approx(50.0 * (fresh.incidents + 1), abs=fresh.incidents)
    assert lost(kept.account, "diagnosing") == 0.0
    assert lost(kept.account, "restarting") == pytest.approx(50.0 + 10.0 * kept.incidents, abs=kept.incidents)


def test_a_machine_that_the_diagnosis_finds_costs_a_restart_in_vain() -> None:
    broken = DIES.model_copy(update={"causes": {Cause.MACHINE: 1}})
    kept = lived(keep=True, symptoms={"dies": broken}, machine_rate=1 / 64 / 2)
    assert kept.evictions == kept.incidents > 3
    assert lost(kept.account, "diagnosing") == pytest.approx(100.0 * kept.incidents)
    assert lost(kept.account, "pausing") == pytest.approx(2.0 * kept.incidents)
    assert lost(kept.account, "restarting") == pytest.approx(50.0 + 20.0 * kept.incidents, abs=kept.incidents)


def test_processes_are_kept_only_where_memory_holds_the_state() -> None:
    with pytest.raises(ValueError, match="keep: expected a strategy other than requeue"):
        Variant(strategy=Strategy.REQUEUE, keep=True)
