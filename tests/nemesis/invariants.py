"""What must hold in every run, whatever the faults. Each is checked from outside, against what really happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.agent.checkpoints.memory import base_job
from holdfast.agent.daemon import Agent
from holdfast.models import agent as wire
from holdfast.models.incarnation import same_unit
from tests.nemesis.training import Group, RankProcess

if TYPE_CHECKING:
    from tests.nemesis.machines import Host
    from tests.nemesis.scheduler import Process
    from tests.nemesis.site import Site

INVARIANTS = {
    "one epoch": "never do two epochs of a job run on machines that may write",
    "no stale token": "nothing is done on behalf of an older epoch, incarnation, attempt or leader",
    "nothing twice": "no rank is started twice in an epoch, no epoch is started again by an incident that recovered",
    "no innocent evicted": "no machine is evicted without a fault of its own",
    "control plane harmless": "no rank ends while only the control plane is at fault",
    "every incident ends": "incidents close after the faults, the job runs as the ledger says, or a person is asked",
    "fences rise": "no agent ever accepts an epoch that it had fenced off",
    "epochs are new": "no epoch number is used twice",
    "one leader": "never are two gateways sure that they lead",
    "no error": "no process fails by an error that nobody handles",
}


class Invariants:
    """Watches a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._fences: dict[tuple[str, str], int] = {}
        self._places: dict[tuple[str, int, int], tuple[str, int]] = {}
        self._ended: set[str] = set()
        self._told: set[str] = set()
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
        group = self._site.groups.get(who[:2])
        if group and (other := group.ranks.get(process.rank)) and other.alive and other is not process:
            self._violated("nothing twice", f"epoch {start.epoch} rank {process.rank} runs twice")
        speaker = process.host.speaker
        fence = self._fences.get((process.host.name, speaker.incarnation), 0) if speaker else 0
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

    def fenced(self, agent: Agent, command: wire.Fence, stopped: list[RankProcess]) -> None:
        """An agent did what a fence, or the end of a job, told it.

        A replay is stopped, and raises no fence: it saves nothing, and the next attempt may need it again. The job's
        own must not fall by it.
        """
        job = base_job(command.job)
        raised = command.epoch if command.job == job else 0
        who, kept = (agent.machine, agent.incarnation), agent.jobs.fences.get(job, 0)
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

    def evicting(self, process: Process, host: Host, incarnation: str, reason: str) -> None:
        """A driver was told to evict."""
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
            told = [
                f"{one.id} {one.state.value} attempt {one.attempt} {one.summary}"[:120] for one in incidents
            ]
            alive = {epoch: len(group.alive) for (_, epoch), group in site.groups.items() if group.alive}
            self._violated(
                "every incident ends", f"job {job.state.value} epoch {job.epoch}, ranks alive {alive}; {told}"
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
            who = host.name, host.speaker.incarnation
            fence = host.speaker.jobs.fences.get("gpt", 0)
            if fence < self._fences.get(who, 0):
                self._violated("fences rise", f"{host.name}: fence {self._fences[who]} fell to {fence}")
            self._fences[who] = max(fence, self._fences.get(who, 0))
        sure = [gateway.host for gateway in site.gateways.values() if gateway.is_sure]
        if len(sure) > 1:
            self._violated("one leader", f"{sure} are sure that they lead")
        site.scheduler.after(0.25, self._look)

    def _may_write(self, host: Host) -> bool:
        """Unless it is cut off from everybody and its agent is stopped, so that it cannot know."""
        others = [other.name for other in self._site.hosts.values() if other is not host and other.up]
        isolated = not any(self._site.network.is_open(host.name, name) for name in others)
        return not (isolated and host.agent is not None and host.agent.stopped)

    def _violated(self, invariant: str, why: str, **_: Any) -> None:
        assert invariant in INVARIANTS
        if why not in self._told:
            self._told.add(why)
            self._site.violated(invariant, why)
