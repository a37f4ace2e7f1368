"""``status``: jobs, machines and ranks at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.cli import context
from holdfast.cli.output import AsJson, ago, print_json, print_table, say, state


def status(as_json: AsJson = False) -> None:
    """Jobs (state, epoch, step, ETTR), machines, ranks and open incidents."""
    with context.gateway() as gateway:
        facts = gateway.status()
    if as_json:
        print_json(facts)
        return
    _jobs(facts)
    _machines(facts)
    _ranks(facts)
    _incidents(facts)


def _jobs(facts: Mapping[str, Any]) -> None:
    rows = [
        (
            job["name"],
            state(job["state"]),
            job["epoch"],
            job["step"],
            percent(job.get("ettr")),
            job.get("code_version"),
        )
        for job in facts["jobs"]
    ]
    print_table(
        "Jobs", ("NAME", "STATE", "EPOCH", "STEP", "ETTR", "CODE"), rows, "none; `holdfast submit JOBFILE`"
    )


def _machines(facts: Mapping[str, Any]) -> None:
    rows = [
        (
            machine["name"],
            state(machine["state"]),
            machine.get("job"),
            machine.get("address"),
            str(machine.get("incarnation", ""))[:8],
            ago(machine.get("seen_at")),
        )
        for machine in facts["machines"]
    ]
    print_table(
        "Machines", ("NAME", "STATE", "JOB", "AGENT", "INCARNATION", "SEEN"), rows, "none; `holdfast up`"
    )


def _ranks(facts: Mapping[str, Any]) -> None:
    rows = [
        (job["name"], rank["rank"], rank["machine"], rank["pid"], rank["step"])
        for job in facts["jobs"]
        for rank in job.get("ranks", ())
    ]
    if rows:
        print_table("Ranks", ("JOB", "RANK", "MACHINE", "PID", "STEP"), rows, "")


def _incidents(facts: Mapping[str, Any]) -> None:
    for incident in facts.get("incidents", ()):
        where = f" on {incident['machine']}" if incident.get("machine") else ""
        name = incident["id"]
        say(f"open incident {name}: {incident['incident_class']}{where} (`holdfast incident {name}`)")


def percent(value: float | None) -> str:
    """``97.2 %``; empty for none."""
    return "" if value is None else f"{100 * value:.1f} %"
