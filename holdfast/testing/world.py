"""The true state of a scripted cluster, as a scenario sets it, and what was done to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import FakeClock
from holdfast.models import agent as wire
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.job import Job
from holdfast.models.machine import Scope
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.ledger import Ledger


@dataclass
class World:
    """The true state of the scripted cluster. Names are of machines unless stated otherwise."""

    clock: FakeClock
    ledger: Ledger
    job: str
    dead: set[str] = field(default_factory=set)
    """Machines whose agents are gone: connections are refused."""
    silent: set[str] = field(default_factory=set)
    """Machines that never answer: they are cut off, or have no power."""
    fails: dict[str, list[str]] = field(default_factory=dict)
    """Check -> machines that fail it."""
    surely: dict[str, list[str]] = field(default_factory=dict)
    """The same, beyond doubt."""
    odd: list[str] = field(default_factory=list)
    """Machines that compute another digest."""
    slow: dict[str, float] = field(default_factory=dict)
    """Machine -> factor by which it is slower."""
    bad_links: list[str] = field(default_factory=list)
    """Machines with which every transfer fails."""
    broken_pairs: list[list[str]] = field(default_factory=list)
    """Pairs of machines between which alone the transfer fails."""
    replay_fails_with: list[str] = field(default_factory=list)
    replay_fails_always: bool = False
    replay_fails_once: bool = False
    """One group fails, once."""
    replay_unloadable: str = ""
    """Why no rank of a replay can load the state; empty: all can."""
    replay_raises: dict[str, str] = field(default_factory=dict)
    """Machine -> type of an exception of the script in each replay that it takes part in."""
    replay_ends_first: str = ""
    """Exception with which ranks of a replay end before its first step; empty: none does."""
    computes_wrongly: list[str] = field(default_factory=list)
    """Machines whose products are finite and wrong: only a comparison of the groups' results shows it."""
    drifting: bool = False
    """The job's kernels are not deterministic: every replay computes something else."""
    outliers: list[int] = field(default_factory=list)
    """Ranks that do not wait while the others do."""
    thread_ended: list[int] = field(default_factory=list)
    """Ranks of which a thread ended by an exception of the script's."""
    in_checkpoint: list[int] = field(default_factory=list)
    """Ranks that wait in ``Session.checkpoint`` until the others call it."""
    stopped: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    """Ranks that have not come to the collective that the others are in."""
    disagree: list[int] = field(default_factory=list)
    """Ranks that are in another collective than the others, under the same number."""
    ahead: list[int] = field(default_factory=list)
    """Ranks that wait as the others do, in a later collective."""
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Results of commands of other packages, one after the other; the last again and again."""
    keeps: bool = False
    """The script lets its ranks keep their processes."""
    fails_in_training: dict[str, list[str]] = field(default_factory=dict)
    """Check -> machines that fail it while ranks that were started run there, and only then."""
    starts_fail: int = 0
    """Number of starts that end in another crash."""
    ships: dict[int, str] = field(default_factory=dict)
    """Epoch -> code version that a person ships while it starts."""
    unrestorable: dict[str, str] = field(default_factory=dict)
    """Tier (memory, peer, s3) -> what a proof of it finds wrong; all other tiers restore."""
    repaired_after_s: float = 0.0
    """Seconds after which hardware that fails an inspection works again."""
    unloadable: list[int] = field(default_factory=list)
    """Steps whose state no rank can load."""
    damaged_copies: dict[int, str] = field(default_factory=dict)
    """Rank -> what its agent found wrong in the source that it was to take its state from; the next one is whole."""
    not_brought: dict[int, str] = field(default_factory=dict)
    """Step -> why no source of some rank's state of it is whole: no machine starts from it."""
    memory_lost: bool = False
    """No machine holds a shard any more."""
    in_s3: list[int] = field(default_factory=list)
    """Steps of the checkpoints in S3, which the first epoch saved."""
    s3_away_s: float = 0.0
    """S3 does not answer for so long."""
    changed: dict[str, list[list[int]]] = field(default_factory=dict)
    """File -> first and last line of what the newest code version changed in it."""
    holds: bool = False
    """Ranks come to the boundary at which they are held, and those that are started ahead wait."""
    dies_at: dict[str, str] = field(default_factory=dict)
    """Command, or command@machine -> machine that is lost when the first such command comes."""
    acts_at: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Command, or check -> the ``request`` and ``body`` of a person, made when the first such command comes."""
    answers_to_people: list[str] = field(default_factory=list)
    """The gateway's answers to these."""
    lost: list[str] = field(default_factory=list)
    """Machines that died so, of which nothing was reported yet."""
    held: int = 0
    """Step at which all ranks are held; 0: none."""
    waiting: dict[str, wire.Start] = field(default_factory=dict)
    """Starts of ranks that were started ahead, by machine."""
    mirrors: dict[str, str] = field(default_factory=dict)
    """Machine that saves are sent from -> the data address that they are sent to."""
    step: int = 20
    started: dict[str, wire.Start] = field(default_factory=dict)
    replays: dict[str, set[str]] = field(default_factory=dict)
    commands: list[tuple[str, str]] = field(default_factory=list)
    """(command, machine), in order."""
    evicted: list[tuple[str, Scope]] = field(default_factory=list)
    began_at: float = 0.0
    first_epoch: int = 1
    first_machines: tuple[str, ...] = ()
    """Machines of the first epoch, which hold the newest state."""
    memory_epoch: int = 0
    """The epoch that saved the newest state into memory; 0: the first one."""

    def now_job(self) -> Job:
        """Return the job as it stands."""
        return self.ledger.job(self.job)

    def repaired(self) -> bool:
        """Return whether hardware that failed an inspection works again."""
        return bool(self.repaired_after_s) and self.clock.now() - self.began_at >= self.repaired_after_s

    def checkpoint(self, step: int) -> RemoteCheckpoint:
        """Return the checkpoint in S3 of one step."""
        key = manifests.checkpoint_key(self.job, step, self.first_epoch)
        return RemoteCheckpoint(
            job=self.job, step=step, epoch=self.first_epoch, world_size=self.saved_by, key=key
        )

    @property
    def saved_by(self) -> int:
        """Number of ranks that saved what machines and S3 hold."""
        spec = self.now_job().spec
        return len(self.first_machines) * spec.ranks_per_machine or spec.world_size
