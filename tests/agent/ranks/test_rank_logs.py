"""Reading along in the logs of running ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.agent.ranks.rank_logs import RankLogs
from holdfast.agent.ranks.reactions import Watch
from holdfast.agent.ranks.run import Run
from holdfast.models.alert import AlertKind


@dataclass
class Site:
    """One run with two ranks, their logs, and what was reported."""

    folder: Path
    alerts: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    replay: object = None

    def __post_init__(self) -> None:
        self.runs: dict[str, Run] = {"gpt": self.run("gpt-e1")}
        watch = SimpleNamespace(alert=self._alert)
        self.logs = RankLogs(self.runs, cast(Watch, watch), 1.0)

    def run(self, name: str) -> Run:
        def process(rank: int) -> Any:
            return SimpleNamespace(gone=SimpleNamespace(done=lambda: rank in self.gone))

        found = SimpleNamespace(
            name=name,
            start=SimpleNamespace(replay=self.replay),
            processes={rank: process(rank) for rank in (0, 1)},
            log=lambda rank: self.folder / f"{name}-r{rank}.log",
            log_tail=lambda rank: (self.folder / f"{name}-r{rank}.log").read_text(),
            board=SimpleNamespace(rows={rank: SimpleNamespace(step_at=0.0) for rank in (0, 1)}),
        )
        return cast(Run, found)

    def write(self, rank: int, *lines: str, run: str = "gpt-e1") -> None:
        with (self.folder / f"{run}-r{rank}.log").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def look(self) -> list[tuple[int, str, int]]:
        """Rank, pattern and count of what one round reports."""
        self.alerts.clear()
        self.logs.look()
        return [(rank, found["pattern"], found["count"]) for rank, found in self.alerts]

    def _alert(self, run: Run, kind: AlertKind, rank: int, evidence: dict[str, Any]) -> None:
        assert kind is AlertKind.RANK_LOG
        self.alerts.append((rank, evidence))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_line_that_says_what_is_wrong_is_reported_once_per_rank(site: Site) -> None:
    """With how often it came; what was written before the first look counts."""
    site.write(0, "step 1", *["CUDA error: an illegal memory access was encountered"] * 3)
    assert site.look() == [(0, "cuda_illegal_access", 3)]
    site.write(0, "CUDA error: an illegal memory access was encountered")
    assert site.look() == []
    site.write(1, "CUDA error: an illegal memory access was encountered")
    assert site.look() == [(1, "cuda_illegal_access", 1)]


def test_ordinary_lines_are_not_reported(site: Site) -> None:
    """A chatty script costs nothing."""
    site.write(0, *[f"step {number} loss 2.3" for number in range(5000)])
    assert site.look() == []


def test_evidence_names_a_cascading_failure(site: Site) -> None:
    """A lost peer is one; groups of the expression come along."""
    site.write(0, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST)")
    site.look()
    [(_, evidence)] = site.alerts
    assert (evidence["cascade"], evidence["seq"], evidence["op"]) == (True, "7", "BROADCAST")


def test_the_next_epoch_is_another_run(site: Site) -> None:
    """Its logs are other files, and the same line is news."""
    site.write(0, "CUDA out of memory")
    assert len(site.look()) == 1
    site.runs["gpt"] = site.run("gpt-e2")
    site.write(0, "CUDA out of memory", run="gpt-e2")
    assert site.look() == [(0, "cuda_out_of_memory", 1)]


def test_ranks_that_ended_and_replays_are_left_to_others(site: Site) -> None:
    """The exit has its own report."""
    site.gone = {0}
    site.write(0, "CUDA out of memory")
    assert site.look() == []
    site.replay = object()
    site.runs["gpt/replay"] = site.run("replay-e1")
    site.write(1, "CUDA out of memory", run="replay-e1")
    assert site.look() == []


def test_a_flood_is_read_from_its_end(site: Site) -> None:
    """Megabytes without a newline, then a line that counts: bounded work, nothing executed."""
    site.write(0, "\x1b[31m" + "x" * (3 << 20), "$(reboot) `CUDA out of memory` <b>", "end")
    found: list[tuple[int, str, int]] = []
    for _ in range(6):
        found += site.look()
        if found:
            break
    assert [pattern for _, pattern, _ in found] == ["cuda_out_of_memory"]
    assert site.alerts[0][1]["line"] == "$(reboot) `CUDA out of memory` <b>"


def test_what_is_tried_again_is_not_reported(site: Site) -> None:
    """A handled line must not make a root of a rank that only loses its peers later."""
    site.write(
        0,
        "OSError: [Errno 28] No space left on device; retrying in 5 s",
        "Max retries exceeded: [Errno 28] No space left on device",
    )
    assert site.look() == [(0, "disk_full", 1)]


THREAD = (
    "Exception in thread Thread-1 (fetch):",
    "Traceback (most recent call last):",
    '  File "data.py", line 31, in fetch',
    "ValueError: bad record",
)


def test_a_part_of_a_rank_that_ended(site: Site) -> None:
    """Of that rank alone; and not of one that stepped on without it for long."""
    run = site.runs["gpt"]
    site.write(1, "step 7", *THREAD)
    site.look()
    found = site.logs.ended_part(run, 1)
    assert found is not None
    assert (found.part, found.place) == ("thread Thread-1 (fetch)", "data.py:31")
    assert site.logs.ended_part(run, 0) is None
    assert run.board is not None
    run.board.rows[1].step_at = time.time() + 30
    assert site.logs.ended_part(run, 1) == found, "it steps on with what was fetched before"
    run.board.rows[1].step_at = time.time() + 300
    assert site.logs.ended_part(run, 1) is None
