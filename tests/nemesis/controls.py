"""Controls: a repair is taken out, and a schedule shows that the defect is found; with it, nothing is found."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from holdfast.agent.ranks.jobs import RunningJobs
from holdfast.agent.roles.replica import Supervised
from holdfast.agent.roles.supervisor import Supervisor
from holdfast.agent.uplink.contact import Standing
from holdfast.agent.uplink.lease_watch import LeaseWatch
from holdfast.deployments.gateway.api import agents
from holdfast.deployments.gateway.fleet.roles import Roles
from holdfast.deployments.gateway.intake.correlation_window import CorrelationWindow
from holdfast.deployments.gateway.leadership import Leadership
from holdfast.deployments.gateway.runs.stillness import RunStillness
from holdfast.errors import UnavailableError
from holdfast.models.agent import Fence
from holdfast.models.roles import RolesOfJob
from holdfast.operations import fleet
from holdfast.policies.detect import silence
from holdfast.storage.ledger.cordons import Cordons
from holdfast.storage.ledger.machine_rows import machine_row
from holdfast.storage.ledger.standbys import Standbys
from tests.nemesis import services, training
from tests.nemesis.agents import SimAgent
from tests.nemesis.faults import FOLLOWER, LEADER, Fault
from tests.nemesis.services import HostClock
from tests.nemesis.shape import PLAIN, Shape

Sabotage = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Control:
    """One repair."""

    sabotage: Sabotage
    """Takes it out."""
    breaks: str
    """The invariant that is broken then."""
    faults: tuple[Fault, ...]
    seed: int = 1
    shape: Shape = PLAIN


@contextlib.contextmanager
def heartbeats_wait_for_the_ledger() -> Iterator[None]:
    """That of the machine with rank 0, which carries the marks of steps."""
    admit = agents.admit

    async def waits(gateway: Any, name: str, incarnation: str) -> Any:
        if name == "m0":
            await asyncio.to_thread(gateway.site.ledger.touch, {(name, incarnation): 0.0})
        return await admit(gateway, name, incarnation)

    # Nor does the gateway's own question count as a sign of life.
    with patch.object(agents, "admit", waits), patch.object(Standing, "asked", lambda _: None):
        yield


def leaders_are_timed_by_the_wall_clock() -> contextlib.AbstractContextManager[Any]:
    """As leases were that ended at a time of day."""
    return patch.object(HostClock, "monotonic", HostClock.now)


@contextlib.contextmanager
def a_leader_without_ledger_leads_on() -> Iterator[None]:
    """It goes by what it knew last."""

    def only_leads(self: Leadership) -> None:
        if not self.leads:
            raise UnavailableError("stands by")

    with patch.object(Leadership, "require_sure", only_leads):
        yield


@contextlib.contextmanager
def evictions_name_no_incarnation() -> Iterator[None]:
    """Evict the machine of that name, whatever its incarnation; the lease is looked at before the act only."""

    def any_life(session: Any, name: str, *_: Any) -> Any:
        return machine_row(session, name, lock=True)

    with (
        patch.object(Cordons, "_meant", staticmethod(any_life)),
        patch.object(services, "require_unit", lambda *_: None),
    ):
        yield


@contextlib.contextmanager
def jobs_are_forgotten_by_name() -> Iterator[None]:
    """Whatever epoch of it runs."""

    async def forget(self: SimAgent, command: Fence) -> None:
        run = self.jobs.runs.get(command.job)
        newest = command.model_copy(update={"epoch": run.start.epoch if run else command.epoch})
        before = self._host.ranks()
        await self.jobs.forget(command.job, newest.epoch)
        self._watched(command, before)

    with patch.object(SimAgent, "forget", forget):
        yield


@contextlib.contextmanager
def fences_are_dropped_with_their_job() -> Iterator[None]:
    """An agent that forgot a job knows nothing of it."""
    forget = RunningJobs.forget

    async def forgets_all(self: RunningJobs, job: str, epoch: int) -> None:
        await forget(self, job, epoch)
        self.fences.pop(job, None)

    with patch.object(RunningJobs, "forget", forgets_all):
        yield


def slots_are_not_looked_at() -> contextlib.AbstractContextManager[Any]:
    """Any standby may take a slot, also one that has another of the same job."""
    claim = Standbys.claim_standbys

    def claim_any(self: Standbys, job: str, n: int, *_: Any) -> Any:
        return claim(self, job, n)

    return patch.object(Standbys, "claim_standbys", claim_any)


def runs_are_judged_by_the_wall_clock() -> contextlib.AbstractContextManager[Any]:
    """By the times that the ledger and Prefect have of what they did."""
    return patch.object(RunStillness, "since", lambda _self, _incident, _signs, age_s, _now: age_s)


def machines_that_are_cut_off_keep_their_replicas() -> contextlib.AbstractContextManager[Any]:
    """Their ranks end, the rest runs on."""

    async def nothing(_: Supervisor) -> None:
        return None

    return patch.object(Supervisor, "stop_all", nothing)


@contextlib.contextmanager
def only_a_contact_as_long_as_the_silence_counts() -> Iterator[None]:
    """However long the gateway is back by then."""
    why_cut_off = silence.why_cut_off

    def endless(silent_s: float, _lease_s: float, asked: Any) -> str:
        return why_cut_off(silent_s, math.inf, asked)

    with patch.object(silence, "why_cut_off", endless):
        yield


@contextlib.contextmanager
def silences_are_of_different_times() -> Iterator[None]:
    """A machine's own after its last try, that of others before it."""

    async def why_cut_off(self: LeaseWatch) -> str:
        lease_s = self._standing.lease_s
        patience_s = silence.ANSWER_SHARE * lease_s
        _, asked = await asyncio.gather(self._probe_gateways(patience_s), self._ask_all(patience_s))
        return silence.why_cut_off(self._standing.silent_s, lease_s, asked) if self.is_due else ""

    with patch.object(LeaseWatch, "why_cut_off", why_cut_off):
        yield


@contextlib.contextmanager
def replicas_outlive_their_plan() -> Iterator[None]:
    """An agent starts what is not there, and ends nothing."""
    wanted = Supervisor._wanted

    def all_of_them(self: Supervisor) -> Any:
        own = {
            key: (RolesOfJob(job=key[0], code_version="v1"), replica.order)
            for key, replica in self._replicas.items()
        }
        return wanted(self) | own

    with patch.object(Supervisor, "_wanted", all_of_them):
        yield


@contextlib.contextmanager
def replicas_fall_with_ranks() -> Iterator[None]:
    """One supervision for all processes of a machine."""
    again = Supervised._again

    async def ends_all(self: Supervised, ended: Any) -> bool:
        forks: Any = self._means.forks
        for rank in forks.host.ranks():
            rank.end(1, "a replica beside it failed")
        return await again(self, ended)

    with patch.object(Supervised, "_again", ends_all):
        yield


@contextlib.contextmanager
def leaders_go_by_what_they_remember() -> Iterator[None]:
    """Of places, from when they led before."""

    async def nothing(_: Roles) -> None:
        return None

    with patch.object(Roles, "resume", nothing):
        yield


@contextlib.contextmanager
def copies_go_with_ranks_ahead() -> Iterator[None]:
    """Whatever a machine has of the job, when ranks that were started ahead are not wanted."""

    async def forgets(self: RunningJobs, job: str) -> None:
        self._memory.forget(job)

    with patch.object(RunningJobs, "_forget_unused", forgets):
        yield


@contextlib.contextmanager
def moves_stop_only_who_stays() -> Iterator[None]:
    """The machine that is left is expected to fall with its peers."""
    settle = fleet.settle

    async def but_m1(ctx: Any, machines: Any, job: str, epoch: int, **named: Any) -> Any:
        left = [one for one in machines if one.name == "m1"]
        others = [one for one in machines if one.name != "m1"]
        return await settle(ctx, others, job, epoch, **named) | await settle(ctx, left, job, 0, **named)

    async def none_leaving(*_: Any) -> list[Any]:
        return []

    with (
        patch.object(fleet, "settle", but_m1),
        patch("holdfast.operations.launch._settle_leaving", none_leaving),
        # What is left of a group does not always hear that a peer has gone.
        patch.object(training.Group, "_fall", lambda *_: None),
    ):
        yield


def attempts_share_a_lease() -> contextlib.AbstractContextManager[Any]:
    """As those would that are called alike."""
    return patch("holdfast.tasks.lease.lease_holder", lambda: "one")


def silence_is_that_of_a_name() -> contextlib.AbstractContextManager[Any]:
    """Whatever has it by now."""
    return patch.object(CorrelationWindow, "still_gone", lambda self, _: frozenset(self.unreachable))


CONTROLS = {
    "a ledger that is away ends healthy ranks": Control(
        heartbeats_wait_for_the_ledger,
        "control plane harmless",
        (Fault(1.0, "ledger_locked", for_s=9.5),),
    ),
    "a leader cut off from the ledger leads on": Control(
        a_leader_without_ledger_leads_on,
        "one leader",
        (Fault(1.0, "gateway_cut_from_ledger", LEADER, for_s=12.0),),
    ),
    "a clock set back leaves no leader": Control(
        leaders_are_timed_by_the_wall_clock,
        "every incident ends",
        (
            Fault(2.0, "gateway_death", LEADER),
            # The follower has seen the leader's last renewal by then.
            Fault(2.6, "clock_step", "g1", amount=-7200.0),
            Fault(2.6, "clock_step", "g2", amount=-7200.0),
            Fault(4.0, "rank_kill"),
        ),
    ),
    "a clock set forward makes two leaders": Control(
        leaders_are_timed_by_the_wall_clock,
        "one leader",
        (
            Fault(0.9, "gateway_cut_from_ledger", LEADER, for_s=4.5),
            Fault(2.6, "clock_step", FOLLOWER, amount=7200.0),
        ),
    ),
    "an attempt wakes in its act and evicts another life of the machine": Control(
        evictions_name_no_incarnation,
        "no stale token",
        (
            Fault(1.0, "machine_reboot", "m1", for_s=15.0),
            Fault(1.0, "run_pause", for_s=40.0, nth=1, inside="evict"),
        ),
    ),
    "a leader wakes and has a job forgotten that runs in a newer epoch": Control(
        jobs_are_forgotten_by_name,
        "no stale token",
        (
            Fault(1.0, "gateway_pause", LEADER, for_s=25.0, nth=2, inside="free_machines"),
            Fault(1.0, "person_stops"),
            Fault(9.0, "person_resumes"),
        ),
    ),
    "a machine that was let go takes two slots": Control(
        slots_are_not_looked_at,
        "one slot",
        (
            Fault(1.0, "machine_reboot", "m1", for_s=8.0),
            Fault(1.0, "machine_death", "m0"),
            # The machine is back, as another, when its eviction is come to.
            Fault(1.0, "run_pause", for_s=10.0, nth=1, inside="evict"),
        ),
    ),
    "a clock set back hides a run that died": Control(
        runs_are_judged_by_the_wall_clock,
        "every incident ends",
        (
            Fault(1.57, "lose_from_machine", "m2", for_s=9.98),
            Fault(1.72, "run_kill", nth=6),
            Fault(3.52, "clock_step", "g1", amount=-7200.0),
            Fault(3.52, "clock_step", "g2", amount=-7200.0),
        ),
        seed=677,
    ),
    "a machine that is cut off while no gateway answers runs on": Control(
        only_a_contact_as_long_as_the_silence_counts,
        "one replica",
        (
            Fault(1.0, "gateway_kill", "g1", for_s=5.0),
            Fault(1.0, "gateway_kill", "g2", for_s=5.0),
            Fault(2.0, "cut_machine_from_control", "m1", for_s=60.0),
        ),
        shape=Shape(roles=True),
    ),
    "the last try makes a silence longer than that of others": Control(
        silences_are_of_different_times,
        "control plane harmless",
        (
            Fault(3.59, "gateway_kill", "g1", for_s=10.6),
            Fault(4.79, "replica_kill", amount=0.955),
            Fault(5.17, "gateway_receives_nothing", "g2", for_s=8.2),
        ),
        seed=5649,
        shape=Shape(roles=True),
    ),
    "a machine that is cut off keeps its replicas": Control(
        machines_that_are_cut_off_keep_their_replicas,
        "one replica",
        (Fault(1.0, "cut_machine_from_control", "m1", for_s=60.0),),
        shape=Shape(roles=True),
    ),
    "a replica of an older generation runs on": Control(
        replicas_outlive_their_plan,
        "every incident ends",
        (Fault(1.0, "rank_kill"),),
        shape=Shape(roles=True),
    ),
    "a replica that fails ends the ranks beside it": Control(
        replicas_fall_with_ranks,
        "control plane harmless",
        (Fault(1.0, "replica_kill"),),
        shape=Shape(roles=True),
    ),
    "a gateway that leads again goes by the places that it remembers": Control(
        leaders_go_by_what_they_remember,
        "generations rise",
        (
            Fault(1.0, "gateway_pause", LEADER, for_s=12.0),
            Fault(8.0, "replicas_fail", "m2", for_s=5.0),
            Fault(24.0, "gateway_death", LEADER),
            Fault(40.0, "replica_kill"),  # the other one leads again by then
        ),
        shape=Shape(roles=True),
    ),
    "a move that is given up takes the state with it": Control(
        copies_go_with_ranks_ahead,
        "state stays",
        (
            Fault(1.0, "person_moves", "m1"),
            Fault(2.2, "machine_death", "m3"),
            Fault(66.1, "rank_kill"),
        ),
        seed=707,
    ),
    "a move leaves two machines in one slot": Control(
        moves_stop_only_who_stays,
        "one epoch",
        (Fault(1.0, "person_moves", "m1"),),
    ),
    "an attempt wakes that the next one took over from, and goes back on its move": Control(
        attempts_share_a_lease,
        "nothing twice",
        (
            Fault(0.24, "person_moves", "m0", amount=0.453),
            Fault(2.17, "cut_machine_from_machines", "m2", for_s=11.0),
            Fault(5.99, "run_pause", for_s=15.43, nth=30),
        ),
        seed=40601,
        shape=Shape(kept=True),
    ),
    "a machine that restarted goes for the silence of its former life": Control(
        silence_is_that_of_a_name,
        "no innocent evicted",
        (
            Fault(0.55, "ledger_slow", for_s=10.94, amount=0.477),
            Fault(0.63, "machine_reboot", "m1", for_s=4.83),
        ),
        seed=40341,
        shape=Shape(roles=True, elastic=True),
    ),
    "a job's end drops its fence": Control(
        fences_are_dropped_with_their_job,
        "fences rise",
        (Fault(1.0, "person_stops"),),
    ),
}
