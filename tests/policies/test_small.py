"""Code versions, the breaker, modes and the Xid catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.models.alert import IncidentClass
from holdfast.models.history import CodeVersion, Epoch
from holdfast.models.job import JobSpec, Mode
from holdfast.policies.classify import xid
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate.breaker import PastEviction, may_evict, may_evict_from_job
from holdfast.policies.escalate.code import last_good, proven
from holdfast.policies.escalate.modes import may_act

POLICY = Policy.load()


def version(name: str, bad: bool = False) -> CodeVersion:
    return CodeVersion(job="gpt", version=name, key=f"gpt/code/{name}", created_at=0.0, bad=bad)


def epoch(
    code: str, first_step: int | None = None, closed_at: float | None = None, opened_at: float = 0.0
) -> Epoch:
    return Epoch(
        job="gpt",
        epoch=1,
        start_step=0,
        code_version=code,
        machines=("m0",),
        reason="x",
        opened_at=opened_at,
        first_step=first_step,
        closed_at=closed_at,
    )


@pytest.mark.parametrize(
    ("names", "current", "expected"),
    [
        (["v1", "v2", "v3"], "v3", "v2"),
        (["v1", "v2!", "v3"], "v3", "v1"),
        (["v1", "v2", "v3"], "v2", "v1"),
        (["v1"], "v1", None),
        (["v1!", "v2"], "v2", None),
        ([], "v1", None),
        (["v1", "v2"], "v9", "v2"),
        (["v1", "v2", "v1"], "v1", "v2"),
        (["v1", "v2!", "v1", "v3"], "v3", "v1"),
    ],
)
def test_the_last_good_version_is_the_newest_before_the_current_one(
    names: list[str], current: str, expected: str | None
) -> None:
    """`!` marks a bad one."""
    versions = [version(name.rstrip("!"), name.endswith("!")) for name in names]
    assert last_good(versions, current, {each.version for each in versions}) == expected


def test_a_version_with_which_the_job_never_trained_is_no_way_back() -> None:
    """A submission that was refused before its first step, then the corrected one under the same name."""
    versions = [version("v1"), version("v2"), version("v3")]
    ran = [epoch("v1", first_step=1), epoch("v2"), epoch("v3", first_step=5)]
    assert proven(ran) == {"v1", "v3"}
    assert last_good(versions, "v3", proven(ran)) == "v1"
    assert last_good(versions[1:], "v3", proven(ran[1:])) is None


def test_a_version_of_an_earlier_submission_is_no_way_back() -> None:
    """A person stopped that job and submitted other code under its name."""
    ran = [epoch("v1", first_step=1), epoch("v2", first_step=1, opened_at=50.0)]
    assert proven(ran, 50.0) == {"v2"}


def test_a_version_of_a_job_that_reports_no_steps_is_proven_by_having_run() -> None:
    """A minute at least."""
    assert proven([epoch("v1", closed_at=100.0), epoch("v2", closed_at=10.0), epoch("v3")]) == {"v1"}


@dataclass(frozen=True)
class Evicted:
    at: float


def test_the_breaker_counts_only_its_window() -> None:
    """Old evictions are forgotten."""
    policy = POLICY.breaker.model_copy(update={"window_s": 100.0, "at_least": 2, "max_share": 0.1})
    recent: list[PastEviction | float] = [0.0, 950.0, Evicted(960.0)]
    assert not may_evict(recent, 1, 10, 1000.0, policy).allowed
    assert may_evict(recent, 1, 30, 1000.0, policy).allowed
    assert may_evict(recent, 1, 10, 1055.0, policy).allowed


def test_the_breaker_says_when_it_allows_it_again() -> None:
    """When enough evictions have left the window; never for more at once than are allowed at all."""
    policy = POLICY.breaker.model_copy(update={"window_s": 100.0, "at_least": 2, "max_share": 0.1})
    assert may_evict([950.0, 960.0], 1, 10, 1000.0, policy).again_at == 1050.0
    assert may_evict([950.0, 960.0], 2, 10, 1000.0, policy).again_at == 1060.0
    assert may_evict([950.0], 3, 10, 1000.0, policy).again_at is None


def test_the_breaker_is_bounded_by_the_share_of_the_job_too() -> None:
    """Four of ten within the hour; small jobs may lose four whatever their size."""
    policy = POLICY.breaker
    assert may_evict_from_job([0.0, 60.0, 120.0], 1, 10, 200.0, policy).allowed
    refused = may_evict_from_job([0.0, 60.0, 120.0, 180.0], 1, 10, 200.0, policy)
    assert not refused.allowed
    assert "of 10 machines of the job" in refused.reason
    assert may_evict_from_job([0.0] * 6, 1, 100, 200.0, policy).allowed
    assert may_evict([], 2, 4, 1000.0, policy).allowed


def test_the_breakers_refusal_says_why() -> None:
    """A human has to decide with it."""
    answer = may_evict([99.0] * 6, 1, 6, 100.0, POLICY.breaker)
    assert not answer.allowed
    assert "6 evictions in the last 10 min, 1 more asked, limit 6" in answer.reason


def spec(mode: Mode = Mode.ACT) -> JobSpec:
    return JobSpec(name="gpt", script="train.py", machines=2, ranks_per_machine=1, mode=mode)


NAN = IncidentClass.NAN_LOSS


@pytest.mark.parametrize(
    ("mode", "changes", "act"),
    [
        (Mode.ACT, {}, True),
        (Mode.OBSERVE, {}, False),
        (Mode.ACT, {"default": Mode.OBSERVE}, False),
        (Mode.ACT, {"by_class": {NAN: Mode.OBSERVE}}, False),
        (Mode.ACT, {"by_class": {IncidentClass.JOB_HANG: Mode.OBSERVE}}, True),
        (Mode.CANARY, {}, False),
        (Mode.CANARY, {"canary_jobs": frozenset({"gpt"})}, True),
        (Mode.CANARY, {"canary_machines": frozenset({"m1", "m2"})}, True),
        (Mode.CANARY, {"canary_machines": frozenset({"m1"})}, False),
        (Mode.CANARY, {"default": Mode.OBSERVE, "canary_jobs": frozenset({"gpt"})}, False),
    ],
)
def test_the_most_careful_mode_counts(mode: Mode, changes: dict[str, object], act: bool) -> None:
    """Job, class, default."""
    answer = may_act(spec(mode), NAN, {"m1", "m2"}, POLICY.modes.model_copy(update=changes))
    assert answer.act is act
    assert answer.reason


def test_a_canary_that_concerns_no_machine_needs_its_job_listed() -> None:
    """An empty set of machines is not "all listed"."""
    assert not may_act(spec(Mode.CANARY), NAN, (), POLICY.modes).act


@pytest.mark.parametrize(
    ("code", "lost"), [(79, True), (95, True), (119, True), (13, False), (31, False), (43, False)]
)
def test_known_xids(code: int, lost: bool) -> None:
    """The most common ones."""
    entry = xid.lookup(code)
    assert entry.known
    assert entry.lost is lost


def test_an_unknown_xid_is_not_lost() -> None:
    """It goes to support, no machine is evicted for it."""
    entry = xid.lookup(4242)
    assert (entry.known, entry.lost, entry.action) == (False, False, xid.XidAction.CONTACT_SUPPORT)


def test_the_catalogue_is_versioned_and_sizeable() -> None:
    """Source and date travel with the data."""
    catalogue = xid.catalogue()
    assert catalogue.version >= 1
    assert "NVIDIA Xid catalogue" in catalogue.source
    assert len(catalogue.date) == 10
    assert len(catalogue.entries) >= 40


@pytest.mark.parametrize(
    "text", ["", "[]", "codes: {1: {name: x}}", "codes: {1: {name: x, lost: maybe, action: pray}}", "{"]
)
def test_a_broken_catalogue_is_a_clear_error(tmp_path: Path, text: str) -> None:
    """Names the file."""
    path = tmp_path / "xid.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"xid\.yaml"):
        xid.catalogue(path)
