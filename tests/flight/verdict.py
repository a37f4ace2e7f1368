"""The verdict on one moment of a job that hangs, of stacks and recordings together, as a playbook reaches it."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from holdfast.agent.diagnostics import flight as reader
from holdfast.models.agent import FlightRecord, StackDump
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import hang_verdict
from holdfast.policies.diagnose.aggregate import aggregate
from holdfast.policies.diagnose.stacks import compared
from tests.flight.labels import RECORDINGS

LIMITS = Policy.load().aggregate
_DUMPS = TypeAdapter(tuple[StackDump, ...])


@dataclass(frozen=True)
class Moment:
    """Stacks and records of one moment."""

    of: Job
    dumps: tuple[StackDump, ...]
    records: tuple[FlightRecord, ...]

    def without(self, stacks: Collection[int], records: Collection[int]) -> Moment:
        """The same, where nothing is known of some ranks."""
        return Moment(
            self.of,
            tuple(each for each in self.dumps if each.rank not in stacks),
            tuple(each for each in self.records if each.rank not in records),
        )

    def suspects(self) -> set[str]:
        """Machines that would be named."""
        found = aggregate(self.dumps, self.of, LIMITS)
        records = self.records if hang_verdict.needs_records(found, ()) else ()
        return set(hang_verdict.verdict(found, self.dumps, records, self.of, LIMITS).suspects)


def recorded(name: str, label: Mapping[str, Any]) -> Moment:
    """The moment of one recording."""
    written = json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes()))
    records: list[FlightRecord] = []
    for rank, asked in written["asked"].items():
        if asked is not None:
            records += reader.read_asked(int(rank), json.dumps(asked).encode())
    world, per = math.prod(label["mesh"].values()), label["per"]
    spec = JobSpec(name="gpt", script="t.py", machines=world // per, ranks_per_machine=per)
    machines = tuple(f"m{slot}" for slot in range(world // per))
    of = Job(
        spec=spec, state=JobState.RUNNING, epoch=1, code_version="v1", machines=machines, submitted_at=0.0
    )
    return Moment(of, tuple(compared(_DUMPS.validate_python(written["stacks"]))), tuple(records))
