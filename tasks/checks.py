"""Checks on machines, for the diagnosis of an incident or for a schedule over standbys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError, SettingsError, SilentError, UnavailableError
from holdfast.models.agent import Check, Diagnose, OpenRendezvous, Rendezvous
from holdfast.models.alert import Finding
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.policies.diagnose import network_environment, pairing


@dataclass(frozen=True)
class Subject:
    """The job or schedule on whose behalf machines are checked."""

    ctx: Context
    name: str
    """A job, or the schedule's name; commands carry it."""
    epoch: int = 0
    attempt: int = 1
    processes: int = 1
    """Ranks per machine."""
    measure: bool = False
    """Whether the pace of collectives is wanted, not only their result."""
    most_silent: int | None = None
    """When more machines than this send no answer, none is accused of it; None: each is."""
    whole: bool = False
    """Whether the machines serve no job: then all of their GPUs are tested."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The job's environment."""
    must_pass: bool = False
    """Whether what is not tested then counts as failed, though not surely: the machine is to serve only afterwards."""


Answer = list[Finding] | HoldfastError
_COLLECTIVE = frozenset({Check.ALL_TO_ALL, Check.ALL_GATHER})


async def each(subject: Subject, machines: Sequence[Machine], tier: str) -> list[Finding]:
    """Run one check inside each machine, all machines at once; an agent that does not answer is a finding too."""
    per = subject.processes
    answers = await fleet.ask(
        subject.ctx,
        machines,
        lambda agent, machine: agent.diagnose(
            Diagnose(
                job=f"{subject.name}~{tier}",
                epoch=subject.epoch,
                incarnation=machine.incarnation,
                check=tier,
                processes=max(2, per) if tier == Check.ALL_TO_ALL else per,
                whole=subject.whole,
                measure=subject.measure,
                env=_environment(subject, tier),
                timeout_s=subject.ctx.policy.diagnose.check_timeout_s,
            )
        ),
        at_once=fleet.LONG_AT_ONCE,
    )
    return _found(subject, tier, await _asked_again(subject, tier, machines, list(answers.items())))


async def neighbours(
    subject: Subject, machines: Sequence[Machine], spares: Sequence[Machine] = ()
) -> list[Finding]:
    """Run an all-gather between each machine and the next; then between suspects of failed pairs and good machines.

    ``spares`` are additional machines, taken for good ones in the second round.
    """
    by_name = {machine.name: machine for machine in machines}
    found = await pairs(subject, "pairs", by_name, pairing.neighbours(tuple(by_name)))
    if all(finding.ok for finding in found):
        return found
    others = {spare.name: spare for spare in spares if spare.name not in by_name}
    second = pairing.again(found, tuple(others))
    return [*found, *await pairs(subject, "pairs-again", by_name | others, second)]


async def pairs(
    subject: Subject, label: str, machines: Mapping[str, Machine], chosen: Sequence[pairing.Pair]
) -> list[Finding]:
    """Run an all-gather within each pair, all pairs at once."""
    # Named by attempt: a store that an earlier attempt fenced cannot be opened again.
    job = f"{subject.name}~{label}{subject.attempt}"
    hosts = {left: machines[left] for left, _ in chosen}
    stores = await fleet.ask(
        subject.ctx,
        hosts.values(),
        lambda agent, host: agent.open_rendezvous(
            OpenRendezvous(job=job, epoch=subject.epoch, incarnation=host.incarnation, world_size=2)
        ),
    )
    found = await asyncio.gather(
        *(_pair(subject, job, stores[left], machines[left], machines[right]) for left, right in chosen)
    )
    # The stores end when the job is fenced the next time, which every start begins with.
    answers = [answer for several in found for answer in several]
    return _found(
        subject, "all_gather", await _asked_again(subject, "all_gather", machines.values(), answers)
    )


async def _pair(
    subject: Subject, job: str, rendezvous: Rendezvous | HoldfastError, left: Machine, right: Machine
) -> list[tuple[str, Answer]]:
    """Test one pair, which meets on its own first machine: a fault of a third one must not matter."""
    if isinstance(rendezvous, HoldfastError):
        return [(left.name, rendezvous)]
    position = {left.name: 0, right.name: 1}
    peer = {left.name: right.name, right.name: left.name}
    answers = await fleet.ask(
        subject.ctx,
        [left, right],
        lambda agent, machine: agent.diagnose(
            Diagnose(
                job=job,
                epoch=subject.epoch,
                incarnation=machine.incarnation,
                check="all_gather",
                processes=subject.processes,
                whole=subject.whole,
                peer=peer[machine.name],
                process_rank=position[machine.name],
                rendezvous=rendezvous,
                measure=subject.measure,
                env=_environment(subject, Check.ALL_GATHER),
                timeout_s=subject.ctx.policy.diagnose.check_timeout_s,
            )
        ),
    )
    return list(answers.items())


def _environment(subject: Subject, tier: str) -> dict[str, str]:
    """Return what of the job's environment its collectives depend on; other checks have none."""
    return network_environment.of_job(subject.env) if tier in _COLLECTIVE else {}


async def _asked_again(
    subject: Subject, tier: str, machines: Iterable[Machine], answers: Sequence[tuple[str, Answer]]
) -> list[tuple[str, Answer]]:
    """Ask machines that were silent for their state: one that sends it was busy, which is no fault of it."""
    silent = {name for name, answer in answers if isinstance(answer, SilentError)}
    if not silent:
        return list(answers)
    late = fleet.answered(
        await fleet.ask(
            subject.ctx,
            [machine for machine in machines if machine.name in silent],
            lambda agent, _: agent.state(shards=False),
        )
    )
    why = "not tested: the check's result did not come in time, but the agent answers"
    return [
        (name, [Finding(check=tier, machine=name, ok=not subject.must_pass, detail=why)])
        if name in late and isinstance(answer, SilentError)
        else (name, answer)
        for name, answer in answers
    ]


def _found(subject: Subject, tier: str, answers: Sequence[tuple[str, Answer]]) -> list[Finding]:
    """Return all findings. Of many machines that send no answer few are gone: the asker's own network is."""
    silent = {name for name, answer in answers if isinstance(answer, SilentError)}
    if subject.most_silent is None or len(silent) <= subject.most_silent:
        silent = set()
    why = f"not tested: {len(silent)} machines send no answer; the network between them and the worker may be cut"
    return [
        finding
        for name, answer in answers
        for finding in (
            [Finding(check=tier, machine=name, ok=not subject.must_pass, detail=why)]
            if name in silent and isinstance(answer, SilentError)
            else findings(tier, name, answer)
        )
    ]


def findings(tier: str, machine: str, answer: Answer) -> list[Finding]:
    """Return the agent's findings, or one that it could not be asked (sure when it is gone).

    An agent of an earlier release does not know a newer check and refuses it: no evidence about its machine.
    """
    if not isinstance(answer, HoldfastError):
        return answer
    if isinstance(answer, SettingsError):
        return [Finding(check=tier, machine=machine, ok=True, detail=f"not tested: {answer}")]
    gone = isinstance(answer, UnavailableError)
    return [Finding(check=tier, machine=machine, ok=False, detail=str(answer), sure=gone, silent=gone)]
