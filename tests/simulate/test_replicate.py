"""Replications, their summary, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.policies.config.policy import Policy
from holdfast.simulate.replicate import run
from holdfast.simulate.summary import Mean
from tests.cli.conftest import Cli, cli
from tests.simulate.make import scenario

__all__ = ["cli"]

POLICY = Policy.load()
FAST = ("--machines", "64", "--days", "3", "--replications", "3", "--jobs", "1")


def test_a_mean_has_its_confidence_interval() -> None:
    """Student's t by hand: 1, 2, 3 has 2 +- 4.303 / sqrt(3)."""
    found = Mean.of([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high - found.mean == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert Mean.of([5.0]).low == 5.0


def test_processes_change_nothing_but_the_time() -> None:
    """Spread over two workers or in this process: the same figures, and every life is counted."""
    what = scenario(days=5)
    counts: list[int] = []
    here = run(what, POLICY, replications=6, seed=7, jobs=1, done=counts.append)
    there = run(what, POLICY, replications=6, seed=7, jobs=2, done=counts.append)
    assert here == there
    assert sum(counts) == 12
    assert here[0].replications == 6
    assert here[0].ettr.low < here[0].ettr.mean < here[0].ettr.high
    assert sum(mean.mean for mean in here[0].lost_h.values()) == pytest.approx(
        5 * 24 * (1 - here[0].ettr.mean)
    )
    assert sum(here[0].mechanisms.values()) == pytest.approx(1.0)
    with pytest.raises(SettingsError, match="replications = 0"):
        run(what, POLICY, replications=0)


def test_the_command_compares_and_plots(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON with every figure, plots beside it; no project is needed."""
    monkeypatch.chdir(tmp_path)
    chosen = ("--strategy", "requeue", "--strategy", "pool:2", "--checkpoint", "30m", "--no-replay")
    result = cli("simulate", *FAST, *chosen, "--plots", "plots", "--json")
    assert result.status == 0, result.err
    content = json.loads(result.out)
    titles = [outcome["title"] for outcome in content["outcomes"]]
    assert titles == [
        "requeue, checkpoint every 30 min, no replay",
        "pool of 2, checkpoint every 30 min, no replay",
    ]
    assert {"ettr", "lost_h", "lost_by_class_h", "mechanisms", "worst_h"} <= content["outcomes"][0].keys()
    assert content["scenario"]["machines"] == 64
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "ettr.svg",
        "lost-by-class.svg",
        "lost-time.svg",
        "mechanisms.svg",
    ]
    assert all("</svg>" in path.read_text() for path in (tmp_path / "plots").iterdir())
    table = cli("simulate", *FAST, *chosen).out
    assert "requeue, checkpoint every 30 min" in table
    assert "Lost hours by phase" in table


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--machines", "7"), "--machines 7: 56 ranks cannot be divided"),
        (("--days", "0"), "--days 0: expected more than 0"),
        (("--strategy", "magic"), "strategy 'magic'"),
        (("none.yaml",), "scenario file none.yaml: cannot be read"),
        (("--plots", "/dev/null/x", *FAST), "--plots /dev/null/x: cannot be written"),
    ],
)
def test_a_wrong_option_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    """One line, before anything is simulated."""
    monkeypatch.chdir(tmp_path)
    result = cli("simulate", *arguments)
    assert result.status == 1
    assert named in result.err
