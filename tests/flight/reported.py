"""Hangs under NCCL that people reported, as each rank's flight recorder would have written them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from holdfast.models.base import Frozen


class Report(Frozen):
    """One report; its fields are explained where the reports are."""

    id: str
    source: str
    world: int
    per: int
    op: str
    ranks: dict[int | str, tuple[int, int]]
    odd: dict[int, tuple[int, str, list[int]]] = Field(default_factory=dict)
    inside: dict[int, int] = Field(default_factory=dict)
    started: dict[int, int] = Field(default_factory=dict)
    behind: tuple[int, ...] = ()
    culprit: tuple[int, ...]
    held_out: bool = False

    def each(self) -> dict[int, tuple[int, int]]:
        """By rank."""
        found: dict[int, tuple[int, int]] = {}
        for key, counts in self.ranks.items():
            first, _, last = str(key).partition("-")
            found |= dict.fromkeys(range(int(first), int(last or first) + 1), counts)
        return found

    def dumps(self) -> dict[int, bytes]:
        """Dumps as NCCL's watchdog would have written them on each rank that the report names."""
        each = self.each()
        since = min(completed for _, completed in each.values())
        return {rank: pickle.dumps(self._dump(rank, since, *counts)) for rank, counts in each.items()}

    def _dump(self, rank: int, since: int, enqueued: int, completed: int) -> dict[str, Any]:
        members = str(list(range(self.world)))
        return {
            "version": "2.5",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
            "pg_status": {
                "0": {"last_enqueued_collective": enqueued, "last_completed_collective": completed}
            },
            "entries": [
                self._entry(rank, number, completed)
                for number in range(since, self.inside.get(rank, enqueued) + 1)
            ],
        }

    def _entry(self, rank: int, number: int, completed: int) -> dict[str, Any]:
        since, name, size = self.odd.get(rank, (number + 1, self.op, [1025]))
        name, size = (name, size) if number >= since else (self.op, [1025])
        done = number <= completed
        return {
            "record_id": number - 1,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": f"nccl:{name}",
            "time_created_ns": 1724779239936775119 + number,
            "input_sizes": [size],
            "output_sizes": [size],
            "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": 1724779239955000000 + number
            if number <= self.started.get(rank, 0)
            else None,
            "time_discovered_completed_ns": 1724779239975811724 + number if done else None,
            "retired": done,
            "timeout_ms": 600000,
            "is_p2p": False,
        }


def reports() -> list[Report]:
    """All of them."""
    read = yaml.safe_load(Path(__file__).with_name("reported.yaml").read_text())
    return [Report.model_validate(each) for each in read]
