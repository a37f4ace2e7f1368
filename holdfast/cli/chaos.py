"""``chaos``: faults by a seeded plan while a job trains, and what became of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import names
from holdfast.cli import context
from holdfast.cli.arguments import checked
from holdfast.cli.output import AsJson, print_json, print_table, progress, say, seconds
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.chaos.fault_plan import Strike
    from holdfast.chaos.report import ChaosReport

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FAULTS = (
    "kill-rank,stop-rank,stop-agent,kill-gateway,stop-gateway,kill-worker,kill-prefect,kill-s3,"
    "lock-database,kill-rank+kill-gateway,kill-rank+kill-prefect"
)


def chaos(  # noqa: PLR0917  (options)
    job: Annotated[
        str, typer.Argument(help="The job to break; no other is touched.", callback=checked(names.JOB))
    ],
    faults: Annotated[
        str,
        typer.Option(help="Faults with commas between, pairs with a plus: kill-rank,kill-rank+kill-gateway."),
    ] = _FAULTS,
    every: Annotated[str, typer.Option(help="One fault or pair every so long: 15s, 2m.")] = "20s",
    for_: Annotated[str, typer.Option("--for", help="How long: 10m, 1h.")] = "10m",
    hold: Annotated[str, typer.Option(help="Longest time that something is stopped or locked.")] = "5s",
    seed: Annotated[int, typer.Option(help="The same seed gives the same plan.")] = 1,
    settle: Annotated[
        str, typer.Option(help="Time to recover after the last fault; with --compare, to end.")
    ] = "2m",
    compare: Annotated[
        Path | None,
        typer.Option(
            help="File of final weights among the job's arguments: compared with a run without faults."
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option(help="Release machines again that were faulted and then evicted.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Kill and stop ranks, agents and services from outside while a job trains; report what was recovered.

    A game day: refused where the site does not allow it (HOLDFAST_CHAOS_ALLOWED).
    """
    settings = context.settings()
    from holdfast.chaos import allowed, fault_plan  # noqa: PLC0415  (the control plane's extras)
    from holdfast.chaos.chaos_run import ChaosRun, WantedRun  # noqa: PLC0415
    from holdfast.chaos.clean_run import Reference  # noqa: PLC0415
    from holdfast.inject import permission  # noqa: PLC0415
    from holdfast.models.machine import MachineState  # noqa: PLC0415
    from holdfast.policies.config.policy import Policy  # noqa: PLC0415

    groups = fault_plan.parse(faults)
    times = {
        name: duration(f"--{name}", text)
        for name, text in {"every": every, "for": for_, "hold": hold, "settle": settle}.items()
    }
    permission.require_site(settings)
    with context.gateway() as gateway:
        known, jobs, machines = gateway.job(job), gateway.jobs(), gateway.machines()
    policy = Policy.load(settings.policy_file) if settings.policy_file else Policy.load()
    allowed.require_job(known, policy)
    standbys = sum(machine.state is MachineState.STANDBY for machine in machines)
    allowed.require_faults(settings, jobs, job, groups, standbys)
    reference = Reference(known, compare) if compare else None
    made = fault_plan.make(
        groups,
        every_s=times["every"],
        for_s=times["for"],
        hold_s=times["hold"],
        seed=seed,
        machines=len(known.machines),
        ranks_per_machine=known.spec.ranks_per_machine,
    )
    allowed.require_breaker(made, len(known.machines), len(machines), policy.breaker)
    if dry_run:
        _print_plan(made, as_json)
        return
    wanted = WantedRun(job, seed, made, times["settle"], repair=repair, reference=reference)
    report = ChaosRun(settings, wanted, progress(as_json)).play()
    _print_report(report, as_json)
    if not report.ok:
        raise typer.Exit(1)


def duration(option: str, text: str) -> float:
    """Return the seconds of ``15s``, ``2m``, ``1h`` or a plain number.

    Raises:
        SettingsError: it is none of these, or not above 0.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"{option} {text!r}: expected a time such as 15s, 2m or 1h.")
    return value


def _print_plan(plan: tuple[Strike, ...], as_json: bool) -> None:
    if as_json:
        print_json(list(plan))
        return
    rows = [
        (
            f"{each.at_s:.0f} s",
            " + ".join(each.faults),
            ", ".join(map(str, each.slots)),
            f"{each.hold_s:.1f} s",
        )
        for each in plan
    ]
    print_table("Plan", ("AT", "FAULT", "MACHINE (SLOT)", "HELD"), rows, "no fault fits into --for")


def _print_report(report: ChaosReport, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    rows = [
        (
            f"{line.at_s:.0f} s",
            " + ".join(line.faults),
            "; ".join(hit.where if hit.fired else f"did not fire: {hit.why}" for hit in line.hits),
            ", ".join(line.incidents),
            (seconds(line.recovered_s) if line.recovered else "NOT RECOVERED") if line.fired else "",
        )
        for line in report.lines
    ]
    print_table("Faults", ("AT", "FAULT", "WHERE", "INCIDENTS", "RECOVERED AFTER"), rows, "none")
    say(
        f"job         {report.state}, {report.steps_total} steps, {report.steps_recomputed} of them done again"
    )
    say(
        f"ETTR        {100 * report.ettr:.1f} % of {seconds(report.wall_s)}, worst gap {report.worst_gap_s:.1f} s"
    )
    for each in report.evictions:
        say(f"evicted     {each.machine} ({each.incident}){'' if each.faulted else ': NO FAULT HIT IT'}")
    if report.weights is not None:
        equal = "identical, bit by bit" if report.weights.equal else "NOT EQUAL"
        say(f"weights     {equal}, against a run without faults ({report.weights.tensors} tensors)")
    for problem in report.problems:
        say(f"problem     {problem}")
