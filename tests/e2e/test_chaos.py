"""`holdfast chaos` on a real site: its faults break things, are recovered, and are in the report as they were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import Site


def chaos(name: str, *options: str, status: int = 0) -> Any:
    """Output of the command."""
    command = [sys.executable, "-m", "holdfast.cli.main", "chaos", name, *options, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.thorough
def test_faults_by_plan_are_recovered_and_reported(site: Site, name: str) -> None:
    """A rank is killed, the gateway and the ledger stand still: one epoch more, no eviction."""
    site.submit(name)
    faults = (
        "--faults",
        "kill-rank,stop-gateway,lock-database",
        "--every",
        "7s",
        "--for",
        "21s",
        "--hold",
        "3s",
    )
    planned = chaos(name, *faults, "--dry-run")
    assert len(site.epochs(name)) == 1
    report = chaos(name, *faults)
    assert [line["faults"] for line in report["lines"]] == [each["faults"] for each in planned]
    unfired = [hit for line in report["lines"] for hit in line["hits"] if not hit["fired"]]
    assert not unfired
    assert report["ok"], report
    assert report["evictions"] == []
    assert len(site.epochs(name)) == 2
    assert len(site.ledger.incidents(job=name)) == 1


@pytest.mark.thorough
def test_nothing_is_touched_where_it_is_not_allowed(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site's setting decides, and the job that runs beside is not hit either."""
    site.submit(name)
    before = site.counts()
    monkeypatch.setenv("HOLDFAST_CHAOS_ALLOWED", "false")
    assert "does not allow chaos" in chaos(name, status=1)["error"]
    monkeypatch.undo()
    assert "another" in chaos("another", status=1)["error"]
    assert site.counts() == before


@pytest.mark.thorough
def test_a_game_day_ends_with_the_same_weights(site: Site, name: str, tmp_path: Path) -> None:
    """Ranks, agents, services, the database and pairs of them; compared with a run without faults."""
    out = tmp_path / "weights.pt"
    site.submit(name, "--out", str(out), steps=1500)
    faults = "kill-rank,kill-agent,stop-gateway,kill-worker,kill-prefect,kill-s3,lock-database,kill-rank+kill-gateway"
    report = chaos(
        name, "--faults", faults, "--every", "12s", "--for", "100s", "--settle", "4m", "--compare", str(out)
    )
    assert report["weights"]["equal"], report
    assert report["ok"], report
