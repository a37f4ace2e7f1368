"""Agents of a scripted cluster: they answer as the scenario directs, and record the commands that they receive."""

from __future__ import annotations

from typing import Any

from holdfast.errors import (
    AheadError,
    CheckpointError,
    RefusedError,
    SilentError,
    UnavailableError,
    UnknownError,
)
from holdfast.models import agent as wire
from holdfast.models.alert import Finding
from holdfast.models.checkpoint import Shard, Tier
from holdfast.models.job import Job
from holdfast.models.machine import Machine, MachineState
from holdfast.models.rehearsal import Problem, Proof, Rehearsal
from holdfast.testing.world import World

WAITING = wire.Frame(function="all_reduce", file="torch/distributed/distributed_c10d.py")
AGREEING = wire.Frame(function="wait", file="holdfast/session/agreement.py")
FURTHER = wire.Frame(function="all_gather", file="torch/distributed/distributed_c10d.py")
WORKING = wire.Frame(function="forward", file="train.py")
THREAD_ENDED = wire.EndedPart(
    part="thread Thread-1 (fetch)", error="ValueError: bad record", place="data.py:31", own=True
)


class ScriptedAgent:
    """The client side of one agent."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world = world
        self._machine = machine

    def _on_command(self, command: str) -> None:
        name, deaths = self._machine.name, self._world.dies_at
        self._world.commands.append((command, name))
        if dies := deaths.pop(f"{command}@{name}", "") or deaths.pop(command, ""):
            self._world.dead.add(dies)
            self._world.lost.append(dies)
        if name in self._world.silent:
            raise SilentError(f"agent at {self._machine.address}: ConnectTimeout")
        if name in self._world.dead or self._is_out():
            raise UnavailableError(f"agent at {self._machine.address}: connection refused")

    def _is_out(self) -> bool:
        """Return whether it was evicted and not released since."""
        name = self._machine.name
        evicted = any(name == gone for gone, _ in self._world.evicted)
        return evicted and self._world.ledger.machine(name).state is MachineState.CORDONED

    async def state(
        self, *, timeout_s: float | None = None, shards: bool = True, saved: tuple[str, int] | None = None
    ) -> wire.AgentState:
        self._on_command("state")
        world, job = self._world, self._world.now_job()
        start = world.started.get(self._machine.name)
        jobs = (self._run(start),) if start is not None else (self._held(job),) if self._trains(job) else ()
        return wire.AgentState(
            machine=self._machine.name,
            incarnation=self._machine.incarnation,
            jobs=jobs,
            shards=tuple(each for each in self._shards(job) if saved in (None, (each.job, each.step))),
        )

    def _trains(self, job: Job) -> bool:
        """Return whether the epoch that the scenario began with still has its ranks here."""
        world, name = self._world, self._machine.name
        stopped = ("fence", name) in world.commands
        return world.holds and job.epoch == world.first_epoch and name in job.machines and not stopped

    def _held(self, job: Job) -> wire.JobOnMachine:
        held = self._world.held
        ranks = tuple(
            wire.RankState(
                rank=rank,
                pid=100 + rank,
                phase=wire.RankPhase.RUNNING,
                step=held or self._world.step,
                steps_done=1,
                paused=bool(held),
            )
            for rank in job.ranks_of(self._machine.name)
        )
        return wire.JobOnMachine(job=job.name, epoch=job.epoch, ranks=ranks)

    def _run(self, start: wire.Start) -> wire.JobOnMachine:
        if shipped := self._world.ships.pop(start.epoch, ""):
            self._world.ledger.add_version(start.job, shipped, "key", "shipped")
            self._world.ledger.set_pending_version(start.job, shipped)
        refused = ""
        if start.restore.step in self._world.unloadable:
            refused = f"model.layers.0.weight: step {start.restore.step} has another shape"
        failed = bool(refused) or start.epoch - 1 <= self._world.starts_fail
        ranks = tuple(
            wire.RankState(
                rank=rank,
                pid=100 + rank,
                phase=wire.RankPhase.EXITED if failed else wire.RankPhase.RUNNING,
                step=self._world.held or self._world.step,
                steps_done=0 if failed else 1,
                paused=bool(self._world.held),
                exit_code=1 if failed else None,
                damaged=refused,
                passed_over=(self._world.damaged_copies[rank],) if rank in self._world.damaged_copies else (),
            )
            for rank in start.ranks
        )
        return wire.JobOnMachine(job=start.job, epoch=start.epoch, ranks=ranks)

    def _shards(self, job: Job) -> tuple[Shard, ...]:
        """Return own shards and the left neighbour's copies, at two steps."""
        machines, name = self._world.first_machines, self._machine.name
        # What ranks saved after the state at hand was saved elsewhere is no part of it.
        mirrors = self._world.mirrors.items()
        sent = [left for left, to in mirrors if to == self._machine.data_address and left in machines]
        if (name not in machines and not sent) or self._world.memory_lost:
            return ()
        held = dict.fromkeys(sent, Tier.PEER)
        if name in machines:
            held |= {name: Tier.MEMORY, machines[machines.index(name) - 1]: Tier.PEER}
        per, saved_by = job.spec.ranks_per_machine, self._world.saved_by
        return tuple(
            Shard(
                job=job.name,
                rank=rank,
                step=step,
                epoch=self._world.memory_epoch or self._world.first_epoch,
                machine=name,
                tier=tier,
                nbytes=1,
                digest="d",
                world_size=saved_by,
            )
            for owner, tier in held.items()
            for rank in range(machines.index(owner) * per, (machines.index(owner) + 1) * per)
            for step in (self._world.step - 10, self._world.step)
            if step not in self._world.not_brought
            or not any(command == "start" for command, _ in self._world.commands)
        )

    async def fence(self, command: wire.Fence) -> list[int]:
        self._on_command("fence")
        self._world.started.pop(self._machine.name, None)
        return []

    async def settle(self, command: wire.Fence, *, connect_s: float = 0.0) -> wire.Settled:
        await self.fence(command)
        kept = (
            self._world.keeps
            and bool(command.keep_s)
            and self._machine.name in self._world.now_job().machines
        )
        ranks = self._world.now_job().spec.ranks_per_machine if kept else 0
        return wire.Settled(state=await self.state(), kept=ranks)

    async def open_rendezvous(self, command: wire.OpenRendezvous) -> wire.Rendezvous:
        self._on_command("open_rendezvous")
        return wire.Rendezvous(host="127.0.0.1", port=1)

    async def start(self, command: wire.Start) -> list[wire.RankState]:
        self._on_command("start")
        waits = self._world.waiting.pop(self._machine.name, None)
        if command.ahead and (waits is None or waits.epoch != command.epoch):
            raise AheadError(f"job {command.job!r} epoch {command.epoch}: its ranks were not started ahead")
        if why := self._world.not_brought.get(command.restore.step):
            raise CheckpointError(why)
        if command.replay is None:
            self._world.started[self._machine.name] = command
        else:
            self._world.replays.setdefault(command.job, set()).add(self._machine.name)
        return []

    async def first_steps(self, job: str, epoch: int, *, patience_s: float) -> wire.JobOnMachine:
        self._on_command("first_steps")
        start = self._world.started.get(self._machine.name)
        if start is None or (start.job, start.epoch) != (job, epoch):
            raise UnknownError(f"no ranks of job {job!r} on this machine")
        return self._run(start)

    async def hold(self, command: wire.Hold) -> None:
        self._on_command("hold")
        if not self._world.holds:
            raise UnavailableError("ranks are not held in a script")
        self._world.held = command.at_step or 0
        self._world.step = command.at_step or self._world.step

    async def start_ahead(self, command: wire.Ahead) -> wire.Waiting:
        self._on_command("start_ahead")
        if not self._world.holds:
            raise RefusedError("ranks are not started ahead in a script")
        self._world.waiting[self._machine.name] = command.start
        return wire.Waiting(ready=True)

    async def mirror(self, command: wire.Mirror) -> None:
        self._on_command("mirror")
        self._world.mirrors[self._machine.name] = command.address

    async def prepare_code(self, command: wire.PrepareCode) -> None:
        self._on_command("prepare_code")

    async def persist(self, command: wire.Persist) -> None:
        """Record the command, which need not arrive: state in memory stays there."""
        self._on_command("persist")

    async def prove(self, command: wire.Prove) -> list[Rehearsal]:
        self._on_command("prove")
        wrong = self._world.unrestorable.get(command.tier)
        problems = [Problem(path="loader.buffer", wrong=wrong)] if wrong else []
        known = {
            "job": command.job,
            "step": command.step or self._world.step,
            "machine": self._machine.name,
            "tier": command.tier,
            "proof": Proof.of(problems),
        }
        return [Rehearsal.model_validate(known | {"rank": rank}) for rank in command.ranks or (None,)]

    async def forget(self, command: wire.Fence, *, timeout_s: float | None = None) -> None:
        self._on_command("forget")

    async def diagnose(self, command: wire.Diagnose) -> list[Finding]:
        self._on_command(command.check)
        world, name, check = self._world, self._machine.name, command.check
        known: dict[str, Any] = {"check": check, "machine": name}
        if check == wire.Check.INSPECT:
            world.clock.advance(1.0)  # each look takes its time
            return self._inspect()
        if check == wire.Check.ALL_GATHER:
            pair = {name, command.peer}
            bad = bool(pair & set(world.bad_links)) or any(pair == set(one) for one in world.broken_pairs)
            return [Finding(**known, peer=command.peer, ok=not bad, detail="a transfer")]
        if name in world.surely.get(check, ()):
            return [Finding(**known, ok=False, sure=True, detail="surely wrong")]
        failed = name in world.fails.get(check, ())
        failed |= name in world.started and name in world.fails_in_training.get(check, ())
        known |= {"ok": not failed, "kind": "gpu"}
        if check == wire.Check.BITWISE:
            known["digest"] = "odd" if name in world.odd else "right"
        if check in (wire.Check.MATMUL, wire.Check.NIC):
            known |= {"value": world.slow.get(name, 1.0), "unit": "s", "repeats": 5}
        return [Finding(**known)]

    def _inspect(self) -> list[Finding]:
        world, name = self._world, self._machine.name
        findings = [
            Finding(check=check, machine=name, ok=False, sure=sure, detail="found by inspection")
            for listed, sure in ((world.fails, False), (world.surely, True))
            for check, machines in listed.items()
            if name in machines and check not in wire.Check.__members__.values() and not world.repaired()
        ]
        return findings or [Finding(check="inspect", machine=name, ok=True)]

    async def command(self, command: wire.Command) -> dict[str, Any]:
        self._on_command(command.name)
        answers = self._world.answers.get(command.name)
        if not answers:
            raise UnknownError(f"the scenario's world.answers has no {command.name!r}")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def stacks(self, job: str, epoch: int) -> list[wire.StackDump]:
        self._on_command("stacks")
        world = self._world
        return [
            wire.StackDump(
                machine=self._machine.name,
                rank=rank,
                pid=100 + rank,
                process_state="T" if rank in world.stopped else "S",
                frames=(_frame(world, rank),),
                ended=THREAD_ENDED if rank in world.thread_ended else None,
            )
            for rank in world.now_job().ranks_of(self._machine.name)
        ]

    async def flight_records(self, job: str, epoch: int) -> list[wire.FlightRecord]:
        self._on_command("flight_records")
        world = self._world
        behind, disagree = world.behind, world.disagree
        if not behind and not disagree:
            return []
        return [
            wire.FlightRecord(
                rank=rank,
                group="0",
                enqueued=6 if rank in behind else 7,
                completed=6,
                operation="gloo:all_gather" if rank in disagree else "gloo:all_reduce",
            )
            for rank in world.now_job().ranks_of(self._machine.name)
        ]

    async def replay_results(self, job: str, epoch: int) -> list[wire.RankResult] | None:
        self._on_command("replay_results")
        world, group = self._world, self._world.replays[job]
        bad = world.replay_fails_always or bool(group & set(world.replay_fails_with))
        if world.replay_fails_once:
            world.replay_fails_once, bad = False, True
        wrong = sorted(group & set(world.computes_wrongly))
        what = f"result {len(world.commands)}" if world.drifting else f"with {wrong}" if wrong else "right"
        rank = sorted(group).index(self._machine.name)
        if why := world.replay_unloadable or world.replay_ends_first:
            return [
                wire.RankResult(
                    rank=rank,
                    machine=self._machine.name,
                    ok=False,
                    detail=why,
                    error_type=why.partition(":")[0],
                    unloadable=world.replay_unloadable,
                    began=False,
                )
            ]
        raised = next((kind for name, kind in sorted(world.replay_raises.items()) if name in group), "")
        digest = wire.StepDigest(step=1, gradients=what)
        return [
            wire.RankResult(
                rank=rank,
                machine=self._machine.name,
                ok=not bad and not raised,
                digests=(digest,),
                error_type=raised,
                detail=raised,
            )
        ]


def _frame(world: World, rank: int) -> wire.Frame:
    """Return the frame in which a rank of a hanging job is."""
    if rank in world.outliers:
        return WORKING
    if rank in world.in_checkpoint:
        return AGREEING
    return FURTHER if rank in world.ahead else WAITING
