"""Invariants of every run, whatever the faults. Each is checked from outside, against the real events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast.agent.checkpoints.memory import base_job
from holdfast.agent.daemon import Agent
from holdfast.models import agent as wire
from holdfast.models.incarnation import same_unit
from holdfast.models.job import ENDED
from tests.nemesis.replicas import ReplicaProcess, live
from tests.nemesis.training import Group, RankProcess

if TYPE_CHECKING:
    from tests.nemesis.machines import Host
    from tests.nemesis.scheduler import Process
    from tests.nemesis.site import Site

LOOK_S = 0.25
PLAN_S = 6.0
"""A machine that hears the gateway has ended a replica so long after it belongs elsewhere."""
LEASE_S = 12.0
"""One that does not considers itself cut off after so long."""

INVARIANTS = {
    "one epoch": "never do two epochs of a job run on machines that may write",
    "no stale token": "nothing is done on behalf of an older epoch, incarnation, attempt or leader",
    "one slot": "no machine has two slots of a job when ranks start",
    "nothing twice": "no rank is started twice in an epoch, no epoch is started again by an incident that recovered",
    "no innocent evicted": "no machine is evicted without a fault of its own",
    "control plane harmless": "no rank ends while only the control plane is at fault",
    "every incident ends": "incidents close after the faults, the job runs as the ledger says, or a person is asked",
    "fences rise": "no agent ever accepts an epoch that it had fenced off",
    "epochs are new": "no epoch number is used twice",
    "one leader": "never are two gateways sure that they lead",
    "one replica": "no replica runs twice on a machine, nor in two generations longer than a plan takes to arrive",
    "generations rise": "no replica belongs to an older generation than before, nor is one shown to a process",
    "state stays": "no machine drops what the newest state that all ranks saved needs, while the job goes on",
    "no error": "no process fails by an unhandled error",
}


class Invariants:
    """Watches a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._fences: dict[tuple[str, str, str], int] = {}
        self._places: dict[tuple[str, int, int], tuple[str, int]] = {}
        self._ended: set[str] = set()
        self._violations: set[str] = set()
        self._beside: dict[tuple[str, str, int], float] = {}
        """Seconds that an older generation of a replica lived beside a newer one, on a machine that could know."""
        self._generations: dict[tuple[str, int], int] = {}
        self._shown: dict[tuple[str, str, str, int], int] = {}
        self._look()

    def started(self, process: RankProcess) -> None:
        """A rank was forked."""
        start: wire.Start = process.run.start
        if start.replay is not None:
            return
        who = start.job, start.epoch, process.rank
        place = process.host.name, start.restore.step
        if (before := self._places.setdefault(who, place)) != place:
            self._violated(
                "epochs are new", f"epoch {start.epoch} rank {process.rank} on {before} and {place}"
            )
        for job in self._site.look(lambda ledger: ledger.jobs()):
            if len(set(job.machines)) < len(job.machines):
                self._violated("one slot", f"job {job.name} epoch {job.epoch} has {list(job.machines)}")
        group = self._site.groups.get(who[:2])
        if group and (other := group.ranks.get(process.rank)) and other.alive and other is not process:
            self._violated("nothing twice", f"epoch {start.epoch} rank {process.rank} runs twice")
        speaker = process.host.speaker
        fence = self._fences.get((process.host.name, speaker.incarnation, start.job), 0) if speaker else 0
        if start.epoch <= fence:
            self._violated(
                "fences rise", f"{process.host.name} started epoch {start.epoch}, fenced off at {fence}"
            )

    def stepped(self, group: Group) -> None:
        """All ranks of an epoch made a step."""
        for (job, epoch), other in self._site.groups.items():
            if job != group.job or epoch == group.epoch:
                continue
            if epoch > group.epoch and other.steps_done:
                self._violated("one epoch", f"epoch {group.epoch} steps after epoch {epoch} has")
            if epoch < group.epoch:
                for one in other.alive:
                    if self._may_write(one.host):
                        self._violated(
                            "one epoch", f"rank {one.rank} of epoch {epoch} on {one.host.name} lives"
                        )

    def ended(self, process: RankProcess, why: str) -> None:
        """A rank is gone."""
        if not self._site.machines_hit and process.run.start.replay is None:
            self._violated("control plane harmless", f"rank {process.rank} ended: {why}")

    def replica_started(self, process: ReplicaProcess) -> None:
        """A replica was forked."""
        twin = [one for one in live(process.host) if one is not process and one.key[:3] == process.key[:3]]
        if twin:
            self._violated("one replica", f"{twin[0].key} and {process.key} run on {process.host.name}")

    def fenced(self, agent: Agent, command: wire.Fence, stopped: list[RankProcess]) -> None:
        """Check an agent's stop of ranks, as ordered by a fence or the end of a job.

        A replay is stopped, and raises no fence: it saves nothing, and the next attempt may need it again. The job's
        own must not fall by it.
        """
        job = base_job(command.job)
        raised = command.epoch if command.job == job else 0
        who, kept = (agent.machine, agent.incarnation, job), agent.jobs.fences.get(job, 0)
        if kept < max(raised, self._fences.get(who, 0)):
            self._violated(
                "fences rise", f"{agent.machine}: fence {kept} after one of {command.epoch} was taken"
            )
        self._fences[who] = max(kept, self._fences.get(who, 0))
        newer = [one for one in stopped if one.run.start.epoch > command.epoch]
        if newer:
            self._violated(
                "no stale token",
                f"{agent.machine}: epoch {newer[0].run.start.epoch} ended by one of {command.epoch}",
            )

    def forgot(self, host: Host, job: str, before: tuple[int, int], after: tuple[int, int]) -> None:
        """A machine dropped all that it kept of a job."""
        known = [one for one in self._site.look(lambda ledger: ledger.jobs()) if one.name == job]
        if after < before and known and known[0].state not in ENDED:
            self._violated("state stays", f"{host.name} dropped epoch and step {before}, {after} is left")

    def evicting(self, process: Process, host: Host, incarnation: str, reason: str) -> None:
        """Check an eviction that a driver was ordered."""
        if host.name not in self._site.blamed and same_unit(incarnation, f"@{host.unit}"):
            self._violated("no innocent evicted", f"{process.name} evicts {host.name}: {reason[:80]}")

    def evicted(self, host: Host, incarnation: str) -> None:
        """It did so."""
        if not incarnation or not same_unit(incarnation, f"@{host.unit}"):
            self._violated("no stale token", f"{host.unit} evicted instead of {incarnation or 'whatever'}")

    def finish(self) -> None:
        """At the end of a run."""
        site = self._site
        if not site.quiet:
            incidents = site.look(lambda ledger: ledger.incidents(evidence=False))
            job = site.look(lambda ledger: ledger.jobs())[0]
            open_incidents = [
                f"{one.id} {one.state.value} attempt {one.attempt} {one.summary}"[:120] for one in incidents
            ]
            alive = {epoch: len(group.alive) for (_, epoch), group in site.groups.items() if group.alive}
            self._violated(
                "every incident ends",
                f"{site.unrest}; job {job.state.value} epoch {job.epoch}, ranks alive {alive}; {open_incidents}",
            )
        self._starts_once()
        for complaint in site.scheduler.complaints:
            self._violated("no error", complaint)

    def _starts_once(self) -> None:
        """After an incident saw an epoch make steps, it starts no other."""
        ledger_epochs = self._site.look(lambda ledger: ledger.epochs("gpt"))
        for incident in self._site.look(lambda ledger: ledger.incidents(evidence=False)):
            actions = self._site.look(lambda ledger: ledger.actions(incident.id))  # noqa: B023
            verified = [
                int(action.key.removeprefix("verify:e"))
                for action in actions
                if action.kind == "verify"
                and action.state == "done"
                and not (action.result or {}).get("refused")
            ]
            later = [
                e.epoch
                for e in ledger_epochs
                if e.incident_id == incident.id and e.epoch > min(verified, default=999)
            ]
            if later:
                self._violated(
                    "nothing twice", f"{incident.id} started epoch {later} after {verified} made steps"
                )

    def _look(self) -> None:
        """Again and again: what agents and gateways hold."""
        site = self._site
        for host in site.hosts.values():
            if host.speaker is None or host.agent is None or not host.agent.alive:
                continue
            who = host.name, host.speaker.incarnation, "gpt"
            fence = host.speaker.jobs.fences.get("gpt", 0)
            if fence < self._fences.get(who, 0):
                self._violated("fences rise", f"{host.name}: fence {self._fences[who]} fell to {fence}")
            self._fences[who] = max(fence, self._fences.get(who, 0))
        sure = [gateway.host for gateway in site.gateways.values() if gateway.is_sure]
        if len(sure) > 1:
            self._violated("one leader", f"{sure} are sure that they lead")
        self._look_at_replicas()
        site.scheduler.after(LOOK_S, self._look)

    def _look_at_replicas(self) -> None:
        newest: dict[tuple[str, str, int], int] = {}
        there = [process for host in self._site.hosts.values() for process in live(host)]
        for process in there:
            newest[process.key[:3]] = max(newest.get(process.key[:3], 0), process.key[3])
        beside = set()
        for process in there:
            who = process.key[:3]
            if process.key[3] < newest[who] and (may_last := self._may_last_s(process.host)):
                beside.add(who)
                self._beside[who] = lasted = self._beside.get(who, 0.0) + LOOK_S
                if lasted > may_last:
                    self._violated(
                        "one replica", f"{process.key} on {process.host.name} runs beside {newest[who]}"
                    )
        self._beside = {who: lasted for who, lasted in self._beside.items() if who in beside}
        self._look_at_members()
        if self._site.shape.roles and self._site.scheduler.now:
            self._look_at_places()

    def _look_at_places(self) -> None:
        for place in self._site.look(lambda ledger: ledger.places("gpt")).places:
            who = place.role, place.index
            if place.generation < self._generations.get(who, 0):
                self._violated(
                    "generations rise", f"{who} belongs on {place.machine} in generation {place.generation}"
                )
            self._generations[who] = max(place.generation, self._generations.get(who, 0))

    def _look_at_members(self) -> None:
        for host in self._site.hosts.values():
            for job, members in host.members.items():
                seen = Counter((member.role, member.index) for member in members)
                if twice := [who for who, number in seen.items() if number > 1]:
                    self._violated("generations rise", f"{host.name} is shown {twice[0]} twice")
                for member in members:
                    who = host.name, job, member.role, member.index
                    if member.generation < self._shown.get(who, 0):
                        self._violated("generations rise", f"{who} generation {member.generation} again")
                    self._shown[who] = max(self._shown.get(who, 0), member.generation)

    def _may_last_s(self, host: Host) -> float:
        """Return how long an older replica may live on a machine; 0: its agent cannot do anything."""
        if host.agent is None or host.agent.stopped or not host.agent.alive:
            return 0.0
        network, leads = self._site.network, self._site.gateway_that(leads=True)
        sure = self._site.gateways[leads].is_sure
        reachable = sure and network.is_open(host.name, leads) and network.is_open(leads, host.name)
        return PLAN_S if reachable else LEASE_S + PLAN_S

    def _may_write(self, host: Host) -> bool:
        """Whether it may write: not if it is cut off from all others and its agent stopped, so that it cannot know."""
        others = [other.name for other in self._site.hosts.values() if other is not host and other.up]
        isolated = not any(self._site.network.is_open(host.name, name) for name in others)
        return not (isolated and host.agent is not None and host.agent.stopped)

    def _violated(self, invariant: str, why: str, **_: Any) -> None:
        assert invariant in INVARIANTS
        if why not in self._violations:
            self._violations.add(why)
            self._site.violated(invariant, why)
