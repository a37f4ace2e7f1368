"""Which nodes are our machines, in ``HOME/slurm.json``: Slurm forgets ended jobs within minutes, we must not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast import durable
from holdfast.drivers.roster import locked
from holdfast.models.base import Frozen
from holdfast.models.machine import Scope


class EvictedNode(Frozen):
    """Why a machine is out of service."""

    scope: Scope
    reason: str
    mark: str = ""
    """The reason that the node carries in Slurm since; empty: it was not drained."""


class HeldNode(Frozen):
    """One machine: a node, and the job that allocates it to us."""

    job: int
    evicted: EvictedNode | None = None


class SlurmRecord(Frozen):
    """All machines by their node's name, and what was given back."""

    machines: Mapping[str, HeldNode] = {}
    retired: frozenset[str] = frozenset()
    """Names that were ours once."""

    def with_machine(self, name: str, held: HeldNode) -> SlurmRecord:
        """Return the record with ``name`` set to ``held``."""
        return SlurmRecord(machines={**self.machines, name: held}, retired=self.retired - {name})

    def without(self, name: str) -> SlurmRecord:
        """Return the record without ``name``, which is remembered as retired."""
        left = {known: held for known, held in self.machines.items() if known != name}
        return SlurmRecord(machines=left, retired=self.retired | {name})


class RecordFile:
    """The record on disk; changes are made by one process at a time."""

    def __init__(self, home: Path) -> None:
        self._path = home.resolve() / "slurm.json"

    def read(self) -> SlurmRecord:
        """Return the record as it stands."""
        try:
            return SlurmRecord.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return SlurmRecord()

    def write(self, record: SlurmRecord) -> None:
        """Replace it; only within :meth:`changing`."""
        durable.write(self._path, record.model_dump_json(indent=1), "slurm")

    @contextmanager
    def changing(self) -> Iterator[SlurmRecord]:
        """Yield the record under its lock, so that no other process changes it."""
        with locked(self._path.with_suffix(".lock")):
            yield self.read()
