"""Another policy over a recorded incident: what it would have decided, what is not recorded, and nothing touched."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.main import app
from holdfast.hindsight.compare import Comparison, Row
from holdfast.testing.play import Played, play
from holdfast.testing.scenario import Scenario
from tests.hindsight.replayed import compared

KILLED = {"kind": "rank_exit", "rank": 3, "evidence": {"signal": "SIGSEGV"}}
LOST = {"kind": "gpu_lost", "machine": "m1"}


async def played(folder: Path, *signals: object, **setup: object) -> Played:
    scenario = {"name": "x", "signals": [*signals], "setup": setup}
    return await play(Scenario.model_validate(scenario), folder)


def row(found: Comparison, step: str) -> Row:
    return next(each for each in found.rows if each.step.startswith(step))


async def test_another_ladder_climbs_another_rung(tmp_path: Path) -> None:
    """Its other rung is marked, with its reasons; what would follow on other machines is not made up."""
    await played(tmp_path, KILLED)
    found = await compared(tmp_path, "gpt-1", "ladder: {classes: {job_crash: {rungs: [evict]}}}")
    rung = row(found, "rung")
    assert (rung.recorded, rung.replayed, rung.same) == ("retry", "evict", False)
    assert rung.reasons[-1] == "evict: tried 0 of 1 times without progress, so try it"
    assert (row(found, "evict").recorded, row(found, "swap").replayed) == ("", "m4 in its place")
    assert "not recorded" in row(found, "start").note
    assert "not recorded" in row(found, "verify").note


async def test_another_meaning_opens_another_incident(tmp_path: Path) -> None:
    """Another class, whose playbook is the one that is followed."""
    await played(tmp_path, LOST)
    found = await compared(tmp_path, "gpt-1", "modes: {default: observe}")
    assert row(found, "class").same
    assert (
        row(found, "ends").replayed
        == "dismissed: observe only: evict the machine at once and swap in a standby"
    )
    assert row(found, "evict").replayed == ""


async def test_a_stricter_breaker_leaves_it_to_a_person_with_a_next_attempt(tmp_path: Path) -> None:
    """The evictions of the time before count; the wait and its end are shown."""
    lost_again = {"kind": "gpu_lost", "machine": "m2", "after_rest": True, "after_s": 660, "reached": 30}
    await played(tmp_path, LOST, lost_again)
    strict = "breaker: {job_at_least: 1, job_share: 0.01}"
    assert (await compared(tmp_path, "gpt-1", strict)).differences == ()
    found = await compared(tmp_path, "gpt-2", strict)
    assert "1 eviction in the last 60 min, 1 more asked, limit 1 of 4" in row(found, "ends").replayed
    assert row(found, "waits").replayed.startswith("for evictions, the 1. time; next attempt after")


async def test_a_check_that_was_not_run_is_not_recorded(tmp_path: Path) -> None:
    """It accuses no machine, and states why."""
    await played(tmp_path, KILLED)
    found = await compared(tmp_path, "gpt-1", "ladder: {classes: {job_crash: {tiers: [inspect, vendor]}}}")
    assert row(found, "check:vendor").note == "not recorded"
    assert row(found, "check:inspect").same
    assert row(found, "check:all_gather").replayed == ""


async def test_a_question_that_was_not_asked_gets_the_default(tmp_path: Path) -> None:
    """A person's answer to it is not recorded."""
    await played(tmp_path, LOST)
    found = await compared(tmp_path, "gpt-1", "approval: {rules: [{scope: cluster}]}")
    asked = row(found, "approve")
    assert asked.recorded == ""
    assert asked.note == "not recorded: no person was asked; the policy's default is taken"


async def test_what_an_older_ledger_lacks_is_listed(tmp_path: Path) -> None:
    """An incident of before inputs were kept."""
    await played(tmp_path, KILLED)
    with create_engine(f"sqlite:///{tmp_path / 'ledger.db'}").begin() as connection:
        connection.execute(text("DELETE FROM inputs"))
    found = await compared(tmp_path, "gpt-1")
    assert [lack.partition(":")[0] for lack in found.not_recorded] == [
        "which machines stood by, and how many there were",
        "which machines did not answer when it was opened",
    ]
    assert found.differences == ()


def bytes_of(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("ledger.db")}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.delenv("HOLDFAST_POLICY_FILE", raising=False)
    return tmp_path


async def test_the_command_shows_both_and_touches_nothing(site: Path) -> None:
    """As a table and as JSON; the ledger stays byte for byte."""
    await played(site, KILLED)
    before = bytes_of(site)
    assert len(before) == 1
    other = site / "other.yaml"
    other.write_text("ladder: {classes: {job_crash: {rungs: [evict]}}}")
    runner = CliRunner()
    done = await asyncio.to_thread(
        runner.invoke, app, ["replay-incident", "gpt-1", "--policy", str(other), "--json"]
    )
    printed = json.loads(done.output)
    assert printed["differences"] == sum(not each["same"] for each in printed["rows"]) > 0
    shown = await asyncio.to_thread(runner.invoke, app, ["replay-incident", "gpt-1"])
    assert "The same decisions." in shown.output
    assert bytes_of(site) == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["gpt-7"], "no incident 'gpt-7'"),
        (["gpt-1", "--policy", "broken.yaml"], "broken.yaml, line 1: ladder.nope"),
        (["gpt-1", "--policy", "missing.yaml"], "missing.yaml"),
    ],
)
async def test_a_wrong_id_or_policy_is_one_clear_line(
    site: Path,
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On standard error, with status 1."""
    await played(site, KILLED)
    monkeypatch.chdir(site)
    Path("broken.yaml").write_text("ladder: {nope: 1}")
    monkeypatch.setattr("sys.argv", ["holdfast", "replay-incident", *arguments])
    with pytest.raises(SystemExit, match="1"):
        main.run()
    printed = capsys.readouterr().err.strip()
    assert text in printed
    assert printed.startswith("error: ")
    assert "\n" not in printed


def test_a_site_without_a_ledger_says_so(site: Path, monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
    """And none is made."""
    monkeypatch.setattr("sys.argv", ["holdfast", "replay-incident", "gpt-1"])
    with pytest.raises(SystemExit, match="1"):
        main.run()
    assert not (site / "ledger.db").exists()
