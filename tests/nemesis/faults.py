"""Faults: what kinds there are, how each is injected underneath, and which a seed draws."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from tests.nemesis.replicas import live
from tests.nemesis.scheduler import Process

if TYPE_CHECKING:
    from tests.nemesis.shape import Shape
    from tests.nemesis.site import Site

GATEWAYS = ("g1", "g2")
LEADER, FOLLOWER = "leader", "follower"
"""Targets that are known when the fault happens only."""
ARMED_S = 25.0
"""A fault that waits for a playbook's run to do something is given up after so long."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    at: float
    """Seconds after the job runs."""
    kind: str
    target: str = ""
    for_s: float = 0.0
    nth: int = 0
    """Strikes at the so-many-th thing that a run does outside of itself."""
    amount: float = 0.0
    inside: str = ""
    """Only what is done inside of the function of this name counts for ``nth``."""

    def __str__(self) -> str:
        words = [f"{self.at:.2f} s: {self.kind}", self.target]
        words += [f"for {self.for_s:.1f} s"] if self.for_s else []
        words += [f"at its call {self.nth}"] if self.nth else []
        words += [f"in {self.inside}"] if self.inside else []
        words += [f"by {self.amount:g}"] if self.amount else []
        return " ".join(word for word in words if word)

    @property
    def over_at(self) -> float:
        """When it is healed."""
        return self.at + self.for_s + (ARMED_S if self.nth else 0.0)


Injector = Callable[["Site", Fault], None]
_KINDS: dict[str, tuple[Injector, bool]] = {}


def kind(control: bool) -> Callable[[Injector], Injector]:
    """Declare one; ``control``: it leaves machines and their network alone."""

    def declare(inject: Injector) -> Injector:
        _KINDS[inject.__name__] = inject, control
        return inject

    return declare


def is_control(fault: Fault) -> bool:
    """Only the control plane is at fault."""
    return _KINDS[fault.kind][1]


def kinds() -> list[str]:
    """All of them."""
    return list(_KINDS)


def inject(site: Site, fault: Fault) -> None:
    """Have it happen now."""
    if fault.target in (LEADER, FOLLOWER):
        fault = replace(fault, target=site.gateway_that(leads=fault.target == LEADER))
    site.note("fault", what=str(fault))
    if not is_control(fault):
        site.machines_hit = True
    _KINDS[fault.kind][0](site, fault)


def _heal(site: Site, fault: Fault, heal: Callable[[], object]) -> None:
    def healed() -> None:
        site.note("healed", what=f"{fault.kind} {fault.target}")
        heal()

    site.scheduler.after(fault.for_s, healed)


@kind(control=False)
def rank_kill(site: Site, fault: Fault) -> None:
    """A rank of the newest epoch gets SIGKILL."""
    if site.groups:
        ranks = site.groups[max(site.groups)].alive
        if ranks:
            ranks[min(int(fault.amount * len(ranks)), len(ranks) - 1)].end(-9, "fault")


@kind(control=True)
def replica_kill(site: Site, fault: Fault) -> None:
    """A replica of a role gets SIGKILL."""
    there = [process for host in site.hosts.values() for process in live(host)]
    if there:
        there[min(int(fault.amount * len(there)), len(there) - 1)].end(-9, "fault")


@kind(control=True)
def replicas_fail(site: Site, fault: Fault) -> None:
    """All replicas on a machine fail, and each that is started there."""
    host = site.hosts[fault.target]
    host.breaks_replicas = True
    for process in live(host):
        process.end(1, "fault")
    _heal(site, fault, lambda: setattr(host, "breaks_replicas", False))


@kind(control=False)
def agent_kill(site: Site, fault: Fault) -> None:
    """An agent gets SIGKILL, and is started again."""
    host = site.hosts[fault.target]
    site.blame(host.name)
    host.kill_agent()
    _heal(site, fault, host.start_agent)


@kind(control=False)
def machine_death(site: Site, fault: Fault) -> None:
    """A machine loses its power for good."""
    site.blame(fault.target)
    site.hosts[fault.target].die("fault")


@kind(control=False)
def machine_silence(site: Site, fault: Fault) -> None:
    """A machine hangs: nothing on it runs, nothing comes back from it, then it is started again."""
    site.blame(fault.target)
    site.network.down.add(fault.target)
    site.hosts[fault.target].die("fault")
    _heal(site, fault, site.hosts[fault.target].boot)


@kind(control=False)
def machine_reboot(site: Site, fault: Fault) -> None:
    """A machine loses its power, and comes back as another unit."""
    site.blame(fault.target)
    site.hosts[fault.target].die("fault")
    _heal(site, fault, site.hosts[fault.target].boot)


@kind(control=False)
def agent_pause(site: Site, fault: Fault) -> None:
    """An agent gets SIGSTOP, its ranks do not; later SIGCONT."""
    site.blame(fault.target)
    if agent := site.hosts[fault.target].agent:
        _pause(site, fault, agent)


@kind(control=False)
def cut_machine(site: Site, fault: Fault) -> None:
    """Nothing comes from a machine or to it."""
    site.blame(fault.target)
    _cut(site, fault, {fault.target}, site.all_hosts - {fault.target})


@kind(control=False)
def cut_machine_from_control(site: Site, fault: Fault) -> None:
    """A machine and the control plane do not reach each other; the machines do."""
    site.blame(fault.target)
    _cut(site, fault, {fault.target}, site.control_hosts)


@kind(control=False)
def cut_machine_from_machines(site: Site, fault: Fault) -> None:
    """A machine and the others do not reach each other; the control plane reaches all of them."""
    site.blame(fault.target)
    _cut(site, fault, {fault.target}, set(site.hosts) - {fault.target})


@kind(control=False)
def lose_from_machine(site: Site, fault: Fault) -> None:
    """Lose all that a machine sends to the control plane; it receives everything."""
    site.blame(fault.target)
    _heal(site, fault, site.network.cut(frozenset({fault.target}), frozenset(site.control_hosts)))


@kind(control=False)
def lose_to_machine(site: Site, fault: Fault) -> None:
    """Lose all that the control plane sends to a machine."""
    site.blame(fault.target)
    _heal(site, fault, site.network.cut(frozenset(site.control_hosts), frozenset({fault.target})))


@kind(control=True)
def gateway_kill(site: Site, fault: Fault) -> None:
    """A gateway gets SIGKILL, and is started again."""
    gateway = site.gateways[fault.target]
    if gateway.process:
        gateway.process.kill()
    _heal(site, fault, gateway.start)


@kind(control=True)
def gateway_pause(site: Site, fault: Fault) -> None:
    """A gateway is stopped, past its lease perhaps, and wakes; with ``nth``, in the middle of what it does."""
    process = site.gateways[fault.target].process
    if process is not None and fault.nth:
        _at_call(site, fault, lambda process: _pause(site, fault, process), process.name)
    elif process is not None:
        _pause(site, fault, process)


@kind(control=True)
def gateway_death(site: Site, fault: Fault) -> None:
    """A gateway's host is gone for good."""
    if process := site.gateways[fault.target].process:
        process.kill()


@kind(control=False)
def person_stops(site: Site, fault: Fault) -> None:
    """A person stops the job."""
    site.ask("/v1/jobs/gpt/stop", (site.gateway_that(leads=True),))


@kind(control=False)
def person_resumes(site: Site, fault: Fault) -> None:
    """A person resumes the job."""
    site.ask("/v1/jobs/gpt/resume")


@kind(control=False)
def person_moves(site: Site, fault: Fault) -> None:
    """A person has the job leave a machine that works."""
    site.blame(fault.target)
    site.ask("/v1/jobs/gpt/move", GATEWAYS * 3, {"machine": fault.target, "by": "ada"})


@kind(control=False)
def person_scales(site: Site, fault: Fault) -> None:
    """A person gives an elastic job another number of machines."""
    site.ask("/v1/jobs/gpt/scale", GATEWAYS * 3, {"machines": 2 + int(fault.amount * 3), "by": "ada"})


@kind(control=True)
def person_scales_role(site: Site, fault: Fault) -> None:
    """A person gives a role another number of replicas."""
    site.ask(
        "/v1/jobs/gpt/roles/rollout/scale", GATEWAYS * 3, {"replicas": int(fault.amount * 6), "by": "ada"}
    )


@kind(control=True)
def gateway_cut_from_ledger(site: Site, fault: Fault) -> None:
    """A gateway does not reach the database; it reaches all others."""
    site.database.cut.add(fault.target)
    _heal(site, fault, lambda: site.database.cut.discard(fault.target))


@kind(control=True)
def gateway_cut_from_machines(site: Site, fault: Fault) -> None:
    """A gateway and the machines do not reach each other."""
    _cut(site, fault, {fault.target}, set(site.hosts))


@kind(control=True)
def gateway_receives_nothing(site: Site, fault: Fault) -> None:
    """Lose all that machines send to one gateway; its own messages arrive."""
    _heal(site, fault, site.network.cut(frozenset(site.hosts), frozenset({fault.target})))


@kind(control=True)
def ledger_locked(site: Site, fault: Fault) -> None:
    """Hold the write lock of the database."""
    _switch(site, fault, "locked")


@kind(control=True)
def ledger_away(site: Site, fault: Fault) -> None:
    """The database refuses connections, as in a failover."""
    _switch(site, fault, "away")


@kind(control=True)
def ledger_full(site: Site, fault: Fault) -> None:
    """The database's disk is full: it can be read only."""
    _switch(site, fault, "full")


@kind(control=True)
def ledger_slow(site: Site, fault: Fault) -> None:
    """Every transaction takes its time."""
    site.database.slow_s = fault.amount
    _heal(site, fault, lambda: setattr(site.database, "slow_s", 0.0))


@kind(control=True)
def clock_step(site: Site, fault: Fault) -> None:
    """Set the wall clock of a host of the control plane."""
    offsets = site.clock_offsets
    offsets[fault.target] = offsets.get(fault.target, 0.0) + fault.amount


@kind(control=True)
def run_kill(site: Site, fault: Fault) -> None:
    """A playbook's run gets SIGKILL in the middle of what it does."""
    _at_call(site, fault, lambda process: process.kill())


@kind(control=True)
def run_pause(site: Site, fault: Fault) -> None:
    """A playbook's run is stopped in the middle of what it does, past its lease perhaps, and wakes."""
    _at_call(site, fault, lambda process: _pause(site, fault, process))


@kind(control=True)
def worker_cut_from_ledger(site: Site, fault: Fault) -> None:
    """Playbooks do not reach the database."""
    site.database.cut.add("worker")
    _heal(site, fault, lambda: site.database.cut.discard("worker"))


@kind(control=True)
def prefect_away(site: Site, fault: Fault) -> None:
    """Prefect does not answer."""
    site.prefect.away = True
    _heal(site, fault, lambda: setattr(site.prefect, "away", False))


@kind(control=True)
def messages_late(site: Site, fault: Fault) -> None:
    """Messages are delayed, so that they overtake each other."""
    site.network.slower_s = fault.amount
    _heal(site, fault, lambda: setattr(site.network, "slower_s", 0.0))


@kind(control=True)
def messages_twice(site: Site, fault: Fault) -> None:
    """Requests arrive twice, the second time later."""
    site.network.repeats = fault.amount
    _heal(site, fault, lambda: setattr(site.network, "repeats", 0.0))


def _switch(site: Site, fault: Fault, name: str) -> None:
    setattr(site.database, name, True)
    _heal(site, fault, lambda: setattr(site.database, name, False))


def _pause(site: Site, fault: Fault, process: Process) -> None:
    process.stopped = True
    _heal(site, fault, lambda: setattr(process, "stopped", False))


def _cut(site: Site, fault: Fault, some: set[str], others: set[str]) -> None:
    one_way = site.network.cut(frozenset(some), frozenset(others))
    other_way = site.network.cut(frozenset(others), frozenset(some))
    _heal(site, fault, lambda: (one_way(), other_way()))


def _at_call(site: Site, fault: Fault, strike: Callable[[Process], None], of: str = "run ") -> None:
    left = fault.nth

    def gate(process: Process) -> None:
        nonlocal left
        if process.name.startswith(of) and (not fault.inside or _runs(fault.inside)):
            left -= 1
            if left == 0:
                disarm()
                site.note("strike", what=fault.kind, on=process.name)
                site.struck += 1
                strike(process)

    def disarm() -> None:
        if gate in site.gates:
            site.gates.remove(gate)

    site.gates.append(gate)
    site.scheduler.after(ARMED_S, disarm)


def _runs(function: str) -> bool:
    """Whether the thread that runs now is inside of it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


OF_RUNS = ("run_kill", "run_pause", "worker_cut_from_ledger")
"""They need an incident."""
OF_ROLES = ("replica_kill", "replicas_fail", "person_scales_role")
"""They need a job with roles."""
OF_SIZES = ("person_scales",)
"""They need an elastic job."""
SCRIPTED = ("gateway_death", "person_stops", "person_resumes")
"""Not drawn: a job does not recover by itself from their effects."""
_LONG = {"gateway_pause", "run_pause", "agent_pause"}


def plan(seed: int | str, machines: list[str], gateways: list[str], shape: Shape) -> list[Fault]:
    """The faults that a seed draws; a third of all seeds have them in the control plane, and in roles, only."""
    draw = random.Random(f"faults {seed}")
    control = [
        name
        for name, (_, of_control) in _KINDS.items()
        if of_control and name not in OF_RUNS + OF_ROLES + SCRIPTED
    ]
    others = [
        name for name, (_, of_control) in _KINDS.items() if not of_control and name not in SCRIPTED + OF_SIZES
    ]
    others += OF_SIZES * 3 if shape.elastic else ()
    others += ["person_moves"] * 2
    if draw.random() < 0.33:
        names = [draw.choice(control) for _ in range(draw.choice((1, 2, 2, 3)))]
    else:
        names = [draw.choice(others)]
        names += [draw.choice(OF_RUNS)] if draw.random() < 0.6 else []
        names += [
            draw.choice(control if draw.random() < 0.7 else others) for _ in range(draw.choice((0, 1, 1, 2)))
        ]
    names += [draw.choice(OF_ROLES) for _ in range(draw.choice((0, 1, 2, 2)))] if shape.roles else []
    found = [_drawn(draw, name, machines, gateways) for name in names]
    return sorted(found, key=lambda fault: fault.at)


def _drawn(draw: random.Random, name: str, machines: list[str], gateways: list[str]) -> Fault:
    target, amount, nth, for_s = "", 0.0, 0, draw.uniform(1.0, 12.0)
    if name.startswith("gateway"):
        target = draw.choice(gateways)
    elif "machine" in name or name.startswith("agent") or name in ("replicas_fail", "person_moves"):
        target = draw.choice(machines)
    if name == "clock_step":
        target = draw.choice([*gateways, "worker", "prefect"])
        amount, for_s = draw.choice((-7200.0, -60.0, 60.0, 7200.0)), 0.0
    elif name == "ledger_slow":
        amount = draw.uniform(0.1, 1.0)
    elif name == "messages_late":
        amount = draw.uniform(0.05, 0.4)
    elif name == "messages_twice":
        amount = draw.uniform(0.1, 0.6)
    elif name in ("run_kill", "run_pause"):
        nth = draw.randint(1, 45)
    if name in _LONG:
        for_s = draw.uniform(1.0, 30.0)
    if name in ("rank_kill", "machine_death", "run_kill", "replica_kill") or name.startswith("person"):
        for_s, amount = 0.0, amount or draw.random()
    return Fault(round(draw.uniform(0.0, 6.0), 2), name, target, round(for_s, 2), nth, round(amount, 3))
