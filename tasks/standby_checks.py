"""Steps of the schedules that check machines outside of jobs: standbys, and machines that wait for admission."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.artifacts import acreate_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import Field

from holdfast.errors import HoldfastError, StaleError, UnknownError
from holdfast.models.agent import Check
from holdfast.models.alert import Alert, AlertKind, Verdict
from holdfast.models.base import Frozen
from holdfast.models.job import JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.models.names import MachineName
from holdfast.models.repair import RepairState
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.operations.evict import take_out
from holdfast.operations.fence import fence
from holdfast.operations.provision import provision_shortfall
from holdfast.policies.counted import counted
from holdfast.policies.diagnose import compare, verdicts
from holdfast.policies.escalate import breaker
from holdfast.policies.join_names import join_names
from holdfast.policies.pool import flapping
from holdfast.tasks import checks
from holdfast.tasks.checks import Subject
from holdfast.tasks.context import context
from holdfast.tasks.story import escape

OWN = (
    Check.INSPECT,
    Check.VENDOR,
    Check.MATMUL,
    Check.PCIE,
    Check.DISK,
    Check.BITWISE,
    Check.ALL_TO_ALL,
    Check.NIC,
)
MEASURED = (Check.MATMUL, Check.PCIE, Check.DISK, Check.ALL_TO_ALL, Check.NIC)
"""Checks of one machine whose value is compared."""
PARTNERS = 3
"""Least number of good machines beside few that come: one for their links, and two for a second look."""


class Inspection(Frozen):
    """Parameters of the standby inspection."""

    tiers: tuple[Check, ...] = Field((*OWN, Check.ALL_GATHER), description="Which checks, in this order.")
    dry_run: bool = Field(False, description="Publish what is found, change nothing.")


class Admission(Frozen):
    """Parameters of the admission of machines."""

    tiers: tuple[Check, ...] = Field((*OWN, Check.ALL_GATHER), description="Which checks, in this order.")
    machines: tuple[MachineName, ...] = Field((), description="Only these; empty: all that wait.")
    dry_run: bool = Field(False, description="Publish what is found, change nothing.")


class Checked(Frozen):
    """The checked machines, and the results."""

    machines: tuple[str, ...]
    verdict: Verdict
    incarnations: dict[str, str] = Field(default_factory=dict)
    """Incarnations by machine, as they were checked."""


@task(task_run_name="check the standbys")
async def check_standbys(inspection: Inspection) -> Checked:
    """Run all checks on all standbys; one that is claimed by a job meanwhile is left out."""
    ctx = context()
    return await check_machines(
        ctx, "standbys", ctx.ledger.machines(state=MachineState.STANDBY), inspection.tiers
    )


@task(task_run_name="check machines that wait for admission")
async def check_applicants(admission: Admission) -> Checked:
    """Run all checks on machines that registered and are not admitted yet.

    A machine that was released and is still starting has the address of its former life: it does not answer, or another
    does, and it is left for a later run.
    """
    ctx = context()
    repaired = {repair.machine for repair in ctx.ledger.repairs(state=RepairState.OPEN)}
    waiting = [
        machine
        for machine in ctx.ledger.machines(state=MachineState.PROVISIONING)
        if machine.address
        and machine.name not in repaired
        and (not admission.machines or machine.name in admission.machines)
    ]
    states = fleet.answered(await fleet.ask(ctx, waiting, lambda agent, _: agent.state()))
    there = [
        machine
        for machine in waiting
        if machine.name in states and states[machine.name].incarnation == machine.incarnation
    ]
    return await check_machines(ctx, "applicants", there, admission.tiers, _partners(ctx, len(there)))


def _partners(ctx: Context, count: int) -> list[Machine]:
    """Return good machines to compare ``count`` others with; none where these are enough by themselves.

    Twice as many: more than a third of the machines that are compared is never accused of being slow.
    """
    if not 0 < count < ctx.policy.diagnose.pace.machines_slightly:
        return []
    return ctx.ledger.machines(state=MachineState.STANDBY)[: max(PARTNERS, 2 * count)]


@task(task_run_name="take unfit standbys out of the pool")
async def remove_unfit(checked: Checked) -> str:
    """Cordon standbys that surely fail, within the breaker's limits; those that serve a job by now are left alone."""
    ctx = context()
    _note(ctx, checked)
    out = await _finish(ctx)
    for name in _surely_failing(checked.verdict):
        if not _stands_by(ctx, name):
            continue
        if forbidden := _breaker(ctx, len(out)):
            get_run_logger().error("%s stays: %s", name, forbidden)
            continue
        why = f"failed its inspection: {_why(checked.verdict, name)}"
        if await _is_taken_out(ctx, name, why, Scope.CLUSTER, checked.incarnations.get(name, "")):
            out.append(name)
    return f"checked {len(checked.machines)}; took out {join_names(out)}{await _replace(ctx, out)}"


@task(task_run_name="admit machines that passed")
async def admit(checked: Checked) -> str:
    """Make machines that passed everything standbys; cordon those that surely fail; others wait.

    A machine that is slower than its equals waits too: it is checked again, or a person looks at it.
    """
    ctx = context()
    failed = {finding.machine for finding in checked.verdict.findings if not finding.ok}
    failed |= set(checked.verdict.suspects)
    surely = set(_surely_failing(checked.verdict))
    begun = await _finish(ctx)
    admitted, refused, changed = list[str](), list[str](), list[str]()
    for name in checked.machines:
        life = checked.incarnations.get(name, "")
        try:
            if name in surely:
                why = f"failed admission: {_why(checked.verdict, name)}"
                out = await _is_taken_out(ctx, name, why, Scope.CLUSTER, life)
                (refused if out else changed).append(name)
            elif name not in failed:
                # It may have been cordoned or restarted while others were checked.
                (admitted if ctx.ledger.admit(name, life) else changed).append(name)
        except (StaleError, UnknownError) as error:
            get_run_logger().warning("%s", error)
            changed.append(name)
    waiting = [name for name in checked.machines if name in failed - surely]
    did = f"admitted {join_names(admitted)}; refused {join_names(refused)}"
    did += f"; {join_names(waiting)} wait" if waiting else ""
    did += f"; {join_names(changed)} changed since and stay as they are" if changed else ""
    did += f"; took out {join_names(begun)}, as was begun before" if begun else ""
    return did + await _replace(ctx, [*begun, *refused])


def _stands_by(ctx: Context, name: str) -> bool:
    try:
        return ctx.ledger.machine(name).state is MachineState.STANDBY
    except UnknownError:
        return False  # it was retired meanwhile: others do not stay for that


async def _is_taken_out(  # noqa: PLR0917
    ctx: Context, name: str, why: str, scope: Scope, life: str, job: str | None = None
) -> bool:
    """Take a machine out of service; return whether it is out. Others do not wait for one that cannot be.

    One that its engine does not let go drains, and is tried again by the next run (:func:`_finish`).
    """
    serving = {"job": job} if job is not None else {}
    try:
        await take_out(ctx, name, why, scope, life, **serving)
    except StaleError as error:
        get_run_logger().warning("%s", error)
    except HoldfastError as error:
        get_run_logger().error("%s drains, and is not out yet: %s", name, error)
    else:
        return True
    return False


async def _finish(ctx: Context) -> list[str]:
    """Take out machines whose eviction was begun, and that no playbook takes out; return those that are out now."""
    out: list[str] = []
    for known in ctx.ledger.machines(state=MachineState.DRAINING):
        why, scope = known.cordon_reason, known.cordon_scope or Scope.CLUSTER
        if why is None or _is_a_playbooks(ctx, known.job):
            continue  # without a reason it is being retired
        if await _is_taken_out(ctx, known.name, why, scope, known.incarnation, known.job):
            out.append(known.name)
    return out


def _is_a_playbooks(ctx: Context, job: str | None) -> bool:
    """Return whether a draining machine of ``job`` is its playbook's: the job has not ended for good."""
    if job is None:
        return False
    ended = ctx.ledger.job(job).state in (JobState.DONE, JobState.STOPPED)
    return not ended or ctx.ledger.acting(job, evidence=False) is not None


async def _replace(ctx: Context, out: list[str]) -> str:
    """Provision the shortfall of the pool once ``out`` left it; return a description; empty when none left."""
    if not out:
        return ""
    try:
        return f"; provisioned {join_names(await provision_shortfall(ctx))}"
    except HoldfastError as error:
        # The result stands; the nightly schedule fills the pool.
        get_run_logger().warning("no machine to replace %s: %s", join_names(out), error)
        return f"; not replaced: {error}"


@task(task_run_name="publish {key}")
async def publish_checks(key: str, checked: Checked, did: str) -> None:
    """Publish the findings."""
    lines = [f"- {escape(line)}" for line in checked.verdict.evidence] or ["- nothing failed"]
    await acreate_markdown_artifact(
        key=key,
        description=did,
        markdown=f"# {counted(len(checked.machines), 'machine', 'machines')} checked\n\n{escape(did)}\n\n"
        + "\n".join(lines)
        + "\n",
    )


async def check_machines(
    ctx: Context,
    name: str,
    machines: list[Machine],
    tiers: tuple[Check, ...],
    partners: Sequence[Machine] = (),
) -> Checked:
    """Run all ``tiers`` on ``machines``, which serve no job; ``partners`` are good, for links and values of a few."""
    # Epochs of such checks only have to differ: stores are opened once each.
    limit = ctx.policy.aggregate.limit(len(machines))
    epoch = int(ctx.clock.now())
    subject = Subject(ctx, name, epoch, measure=True, most_silent=limit, whole=True, must_pass=True)
    answering = machines
    found = []
    for tier in tiers:
        if tier is Check.ALL_GATHER:
            beside = partners[:1] if answering else ()
            found += await checks.neighbours(subject, [*answering, *beside], partners[1:])
        else:
            # Measured values are compared: with good machines where there are no others.
            beside = partners if tier in MEASURED and answering else ()
            found += await checks.each(subject, [*answering, *beside], tier)
        gone = {finding.machine for finding in found if finding.check == Check.INSPECT and finding.sure}
        answering = [machine for machine in answering if machine.name not in gone]
    # Ends the stores where they met.
    await fence(ctx, [*answering, *partners], subject.name, subject.epoch)
    return Checked(
        machines=tuple(machine.name for machine in machines),
        verdict=verdicts.judge(found, ctx.policy.diagnose.slow_factor, ctx.policy.diagnose.pace),
        incarnations={machine.name: machine.incarnation for machine in machines},
    )


def _note(ctx: Context, checked: Checked) -> None:
    """Record which machines passed: a standby that flapped comes back when its checks passed for a while."""
    findings = checked.verdict.findings
    seen = {each.machine for each in findings}
    failed = {each.machine for each in findings if not each.ok} | {*checked.verdict.suspects}
    for name in checked.machines:
        if name not in seen:  # it did not answer
            continue
        alert = Alert(
            kind=AlertKind.HOST_FAULT,
            machine=name,
            at=ctx.clock.now(),
            firing=name in failed,
            evidence={"check": flapping.STANDBY_CHECKS},
        )
        ctx.ledger.record_alert(alert, None, "failed" if name in failed else "passed")


def _surely_failing(verdict: Verdict) -> list[str]:
    """Return suspects that a sure finding or a clear majority accuses; being slow is no proof."""
    sure = {finding.machine for finding in verdict.findings if not finding.ok and finding.sure}
    odd, _ = compare.odd_digests(verdict.findings)
    return [name for name in verdict.suspects if name in sure | odd]


def _why(verdict: Verdict, name: str) -> str:
    return "; ".join(line for line in verdict.evidence if name in line)[:500]


def _breaker(ctx: Context, more: int) -> str:
    now, policy = ctx.clock.now(), ctx.policy.breaker
    fleet_size = ctx.ledger.fleet_size()
    answer = breaker.may_evict(ctx.ledger.evictions(now - policy.window_s), more + 1, fleet_size, now, policy)
    return "" if answer.allowed else answer.reason
