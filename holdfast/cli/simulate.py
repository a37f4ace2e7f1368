"""``simulate``: what if. Months of a large job, under the policies that run in production."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast import settings as settings_module
from holdfast.cli.arguments import finite
from holdfast.cli.output import AsJson, err, print_json, print_table, say
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.policies.config.policy import Policy
    from holdfast.simulate.scenario import Scenario
    from holdfast.simulate.summary import Mean, SimulatedOutcome


def simulate(  # noqa: PLR0917
    scenario_file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="YAML with what is different from the packaged scenario."),
    ] = None,
    machines: Annotated[int | None, typer.Option(min=1, help="Machines of the job.")] = None,
    days: Annotated[float | None, typer.Option(help="Days to simulate.", callback=finite)] = None,
    rate: Annotated[
        float | None, typer.Option(min=0, help="Faults of machines, per machine and day.", callback=finite)
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="requeue, reschedule, pool, pool:N or unlimited; may be given again."),
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="every-step, or minutes such as 30m; may be given again.")
    ] = None,
    inspection: Annotated[bool, typer.Option(help="Notice faults by inspection, not by timeouts.")] = True,
    rollback: Annotated[bool, typer.Option(help="Roll code back.")] = True,
    aggregation: Annotated[bool, typer.Option(help="Analyse the stacks of a hang.")] = True,
    replay: Annotated[bool, typer.Option(help="Dual-phase replay.")] = True,
    keep_processes: Annotated[
        bool, typer.Option("--keep-processes", help="Compare each with itself under `holdfast.run`, too.")
    ] = False,
    without_roles: Annotated[
        bool,
        typer.Option("--without-roles", help="Compare each with itself without the scenario's roles, too."),
    ] = False,
    replications: Annotated[int, typer.Option(min=1, help="Lives of each variant.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answer.")] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: one for each processor.")
    ] = None,
    plots: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write plots (SVG) there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a job for months and compare ways of running it: ETTR, lost time, what ended incidents.

    Without options the packaged comparison for 9,600 GPUs is made. With --strategy, --checkpoint, --keep-processes or
    a --no-... option, those are compared instead.
    """
    from holdfast.simulate import replicate  # noqa: PLC0415  (simpy and scipy: only who simulates pays for them)
    from holdfast.simulate.scenario import Scenario, Variant  # noqa: PLC0415

    scenario = _changed(Scenario.load(scenario_file), machines, days, rate)
    wanted = {"inspection": inspection, "rollback": rollback, "aggregation": aggregation, "replay": replay}
    if strategy or checkpoint or keep_processes or not all(wanted.values()):
        base = Variant.model_validate(wanted)
        chosen = replicate.variants_of(strategy or ["pool"], checkpoint or ["every-step"], base)
        if keep_processes:
            chosen = replicate.with_and_without_processes(chosen)
        scenario = scenario.model_copy(update={"variants": chosen})
    if without_roles:
        scenario = scenario.model_copy(update={"variants": replicate.with_and_without_roles(scenario)})
    outcomes = _run(scenario, replications, seed, jobs)
    written = _plot(outcomes, plots) if plots else []
    if as_json:
        print_json(
            {"scenario": _facts(scenario), "outcomes": outcomes, "plots": [str(path) for path in written]}
        )
        return
    _show(scenario, outcomes)
    for path in written:
        say(f"wrote {path}")


def _changed(scenario: Scenario, machines: int | None, days: float | None, rate: float | None) -> Scenario:
    from holdfast.simulate.simulated_role import wrong  # noqa: PLC0415

    if days is not None and days <= 0:
        raise SettingsError(f"--days {days:g}: expected more than 0")
    changes: dict[str, Any] = {"machines": machines, "days": days, "machine_rate": rate}
    given = {name: value for name, value in changes.items() if value is not None}
    size = scenario.parallelism.block()
    if machines is not None and machines * scenario.ranks_per_machine % size:
        raise SettingsError(
            f"--machines {machines}: {machines * scenario.ranks_per_machine} ranks cannot be divided into groups of "
            f"tp x pp = {size}; expected a multiple of {max(1, size // scenario.ranks_per_machine)}, or another "
            "parallelism in the scenario file"
        )
    if machines is not None and (problem := wrong(scenario.roles, machines)):
        raise SettingsError(f"--machines {machines}: {problem}")
    return scenario.model_copy(update=given)


def _policy() -> Policy:
    """Return the site's policy inside a project, else the packaged one."""
    from holdfast.policies.config.policy import Policy  # noqa: PLC0415

    try:
        return Policy.load(settings_module.load().policy_file)
    except SettingsError:
        # Outside a project. A wrong policy file of a project is an error all the same.
        try:
            settings_module.find_home()
        except SettingsError:
            return Policy.load()
        raise


def _run(scenario: Scenario, replications: int, seed: int, jobs: int | None) -> list[SimulatedOutcome]:
    from holdfast.simulate import replicate  # noqa: PLC0415

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=replications * len(scenario.variants))
        return replicate.run(
            scenario,
            _policy(),
            replications=replications,
            seed=seed,
            jobs=jobs,
            done=lambda n: progress.advance(task, n),
        )


def _plot(outcomes: Sequence[SimulatedOutcome], folder: Path) -> list[Path]:
    from holdfast.simulate import plots  # noqa: PLC0415

    try:
        return plots.write(outcomes, folder)
    except OSError as error:
        raise SettingsError(f"--plots {folder}: cannot be written ({error})") from None


def _facts(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", exclude={"variants"})


def _show(scenario: Scenario, outcomes: Sequence[SimulatedOutcome]) -> None:
    gpus, first = scenario.machines * scenario.ranks_per_machine, outcomes[0]
    say(
        f"{scenario.machines} machines ({gpus} GPUs), {scenario.days:g} days, {scenario.machine_rate:g} faults per "
        f"machine and day; {first.replications} replications, 95 % confidence intervals, seed {first.seed}"
    )
    rows = [
        (
            f"{number}",
            outcome.title,
            _range(outcome.ettr),
            _hours(outcome.lost, "{:.0f}"),
            f"{outcome.incidents.mean:.0f}",
            f"{outcome.evictions.mean:.0f}",
            _hours(outcome.worst_h, "{:.1f}"),
            f"{outcome.worst_of_all_h:.1f} h",
        )
        for number, outcome in enumerate(outcomes, 1)
    ]
    columns = ("", "VARIANT", "ETTR", "LOST", "INCIDENTS", "EVICTED", "WORST", "OF ALL")
    print_table("", columns, rows, "")
    _show_roles(outcomes)
    _by_variant("Lost hours by phase", [_means(outcome.lost_h) for outcome in outcomes], "{:.1f}")
    _by_variant("Lost hours by class", [_means(outcome.lost_by_class_h) for outcome in outcomes], "{:.1f}")
    _by_variant("What ended incidents", [outcome.mechanisms for outcome in outcomes], "{:.1%}")


def _show_roles(outcomes: Sequence[SimulatedOutcome]) -> None:
    rows = [
        (
            f"{number}",
            name,
            _range(role.ran),
            _range(role.ready),
            f"{role.failures.mean:.1f}",
            f"{role.restarts.mean:.1f}",
            f"{role.moves.mean:.1f}",
            f"{role.asked.mean:.1f}",
            _hours(role.trainer_h, "{:.2f}"),
        )
        for number, outcome in enumerate(outcomes, 1)
        for name, role in outcome.roles.items()
    ]
    if rows:
        say("")
        columns = ("", "ROLE", "RAN", "READY", "FAILURES", "RESTARTS", "MOVES", "ASKED", "TRAINER LOST")
        print_table("Roles", columns, rows, "")


def _by_variant(title: str, cells: Sequence[dict[str, float]], form: str) -> None:
    """Print one column for each variant, numbered as in the first table."""
    say("")
    rows = [
        (
            name.replace("_", " ") or "no incident",
            *(form.format(cell[name]) if name in cell else "" for cell in cells),
        )
        for name in dict.fromkeys(name for cell in cells for name in cell)
    ]
    print_table(title, ("", *(str(number) for number in range(1, len(cells) + 1))), rows, "")


def _means(values: dict[str, Mean]) -> dict[str, float]:
    return {name: mean.mean for name, mean in values.items()}


def _hours(mean: Mean, form: str) -> str:
    interval = f" ± {form.format((mean.high - mean.low) / 2)}" if mean.high > mean.low else ""
    return f"{form.format(mean.mean)}{interval} h"


def _range(mean: Mean) -> str:
    interval = f" ± {50 * (mean.high - mean.low):.2f}" if mean.high > mean.low else ""
    return f"{100 * mean.mean:.2f}{interval} %"
