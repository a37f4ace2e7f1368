"""The policy file: partial, typed, and every mistake named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.models.alert import IncidentClass, Rung
from holdfast.models.job import Mode
from holdfast.policies.config.policy import Policy


def load(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return Policy.load(path)


def test_the_packaged_policy_loads() -> None:
    """And is read once."""
    assert Policy.load() is Policy.load()
    assert Policy.load().hang.votes == 2


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    """Everything else keeps its default, also inside mappings."""
    policy = load(
        tmp_path,
        "hang:\n  min_window_s: 9\nladder:\n  classes: {job_crash: {rungs: [retry]}}\n"
        "modes:\n  by_class: {nan_loss: observe}\n",
    )
    default = Policy.load()
    assert policy.hang.min_window_s == 9
    assert policy.hang.factor == default.hang.factor
    crash = default.ladder.of(IncidentClass.JOB_CRASH).model_copy(update={"rungs": (Rung.RETRY,)})
    assert policy.ladder.classes == {**default.ladder.classes, IncidentClass.JOB_CRASH: crash}
    assert policy.modes.by_class == {IncidentClass.NAN_LOSS: Mode.OBSERVE}
    assert policy.classify == default.classify


@pytest.mark.parametrize(
    ("text", "seconds"), [("500 ms", 0.5), ("90", 90), ("2min", 120), ("1.5 h", 5400), ("7 d", 604_800)]
)
def test_durations_may_carry_their_unit(tmp_path: Path, text: str, seconds: float) -> None:
    """Without one they are seconds."""
    assert load(tmp_path, f"ettr:\n  window_s: {text}\n").ettr.window_s == seconds


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_file_is_the_default(tmp_path: Path, text: str) -> None:
    """Nothing changed."""
    assert load(tmp_path, text) == Policy.load()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "hang:\n  votes: 2\n  vots: 3\n",
            ["line 3", "hang.vots is not a known key", "Allowed here:", "votes"],
        ),
        ("hung: {}\n", ["line 1", "hung is not a known key", "hang", "ladder"]),
        ("\n\nhang:\n  votes: 9\n", ["line 4", "hang.votes = 9", "less than or equal to 4"]),
        ("hang: {votes: many}\n", ["line 1", "hang.votes = 'many'", "integer"]),
        ("hang: {votes: true}\n", ["line 1", "hang.votes = True", "integer"]),
        ("modes:\n  default: maybe\n", ["line 2", "modes.default = 'maybe'", "observe, canary, act"]),
        ("modes:\n  by_class:\n    nan_los: act\n", ["line 3", "nan_los", "nan_loss"]),
        ("modes:\n  by_class:\n    nan_loss: at\n", ["line 3", "'at'", "observe, canary, act"]),
        (
            "ladder:\n  classes:\n    job_crash:\n      rungs:\n        - retry\n        - retrie\n",
            ["line 6", "retrie", "expected one of retry, ", "rollback"],
        ),
        (
            "ladder:\n  classes: {job_crash: {rungs: [human]}}\n",
            ["line 2", "human is not an attempt", "`end`"],
        ),
        ("ladder:\n  classes: {job_crash: {end: retry}}\n", ["line 2", "human or stop"]),
        ("ladder:\n  classes: {job_crash: {end: reboot}}\n", ["line 2", "'reboot'", "human or stop."]),
        ("ladder:\n  classes: {job_crash: {end: [stop]}}\n", ["line 2", "human or stop."]),
        ("hang: {stopped_s: .inf}\n", ["line 1", "hang.stopped_s = inf", "a finite number", "1000 d"]),
        ("spare_pool: {shrink_margin: .nan}\n", ["line 1", "shrink_margin = nan", "a finite number"]),
        ("ladder:\n  classes:\n    job_chrash: {}\n", ["line 3", "job_chrash", "job_crash", "fail_slow"]),
        ("ladder:\n  classes:\n    job_crash:\n      tiers: [xray]\n", ["line 4", "xray", "bitwise"]),
        ("ladder:\n  classes:\n    job_crash:\n      scope: room\n", ["line 4", "room", "cluster"]),
        (
            "ladder:\n  classes:\n    job_crash:\n      rung: []\n",
            ["line 4", "rung is not a known key", "rungs"],
        ),
        ("approval:\n  rules:\n    - {machines_ower: 1}\n", ["line 3", "machines_ower", "machines_over"]),
        ("approval:\n  default: maybe\n", ["line 2", "maybe", "refuse", "approve"]),
        ("hang:\n  stopped_s: 3 fortnights\n", ["line 2", "unknown unit 'fortnights'", "ms, s, min, h, d"]),
        ("hang:\n  stopped_s: soon\n", ["line 2", "soon", "number"]),
        ("hang:\n  min_window_s: 1 h\n", ["min_window_s 3600 is more than max_window_s 300"]),
        ("spare_pool: {minimum: 9, maximum: 3}\n", ["line 1", "minimum 9 is more than maximum 3"]),
        ("breaker: {max_share: 1.5}\n", ["line 1", "max_share", "less than or equal to 1"]),
        ("diagnose: {check_timeout_s: 400}\n", ["line 1", "check_timeout_s 400 is more than budget_s 300"]),
        ("hang: 5\n", ["line 1", "hang = 5"]),
        ("hang:\n  votes: 2\n  votes: 3\n", ["line 3", "hang.votes is given twice", "line 2"]),
        ("- hang\n", ["expected keys"]),
        ("hang: [\n", ["not valid YAML"]),
    ],
)
def test_a_mistake_is_named_with_key_line_and_what_is_allowed(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    """One sentence, no traceback."""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "policy.yaml" in message
    for part in parts:
        assert part in message
    assert "\n" not in message or "not valid YAML" in message


@pytest.mark.parametrize("text", ["end: retry", "rungs: [skip_data]"])
def test_what_a_rule_refuses_is_not_named_as_allowed(tmp_path: Path, text: str) -> None:
    """All rungs there are do not belong behind a message that one of them cannot be taken."""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, f"ladder: {{classes: {{job_crash: {{{text}}}}}}}")
    assert "Allowed" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the setting that points to it."""
    with pytest.raises(SettingsError, match="HOLDFAST_POLICY_FILE"):
        Policy.load(tmp_path / "none.yaml")


def test_the_over_eviction_limit_is_a_share_but_at_least_one() -> None:
    """A small job may lose a machine, a large one not a quarter of the cluster."""
    limit = Policy.load().aggregate.limit
    assert [limit(n) for n in (1, 4, 8, 16, 1200)] == [1, 1, 2, 4, 16]
