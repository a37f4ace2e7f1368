"""``status``: jobs, machines and ranks at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import redact
from holdfast.cli import context, roles
from holdfast.cli.output import AsJson, ago, at, percent, print_json, print_table, say, seconds, serves, state
from holdfast.client import links
from holdfast.models.job import ENDED, JobState
from holdfast.shown import size

MOST_LOST = 5
"""Lines of lost time of each job; ``--json`` has all, also of jobs that have ended."""


def status(as_json: AsJson = False) -> None:
    """Jobs (state, epoch, step, ETTR, where time was lost), machines, ranks, incidents and what people are asked."""
    with context.gateway() as gateway:
        chosen = context.settings().page_url
        facts = gateway.status() | {"page": redact.page(chosen or gateway.url)}
    if as_json:
        print_json(facts)
        return
    _jobs(facts)
    _checkpoints(facts)
    _machines(facts)
    _ranks(facts)
    roles.show(facts["jobs"])
    _incidents(facts)
    for repair in facts.get("repairs", ()):
        say(f"repair of {repair['machine']}: {repair['told']}")
    _restores(facts)
    say(f"Status page: {facts['page']}")
    say(links.prefect_ui(context.settings()))
    if lacks := facts["prefect"].get("lacks"):
        say(
            f"Prefect has no deployment of {', '.join(lacks)}: their incidents run without it. "
            "Run `holdfast up`, or `prefect deploy --all` where you deploy to a Prefect of your own."
        )


def _jobs(facts: Mapping[str, Any]) -> None:
    rows = [
        (
            job["name"],
            state(job["state"]),
            job["epoch"],
            job["step"],
            job.get("ettr_note") or percent(job.get("ettr")),
            percent(job.get("ettr_window")),
            "" if job.get("ettr_note") else most_lost(job.get("lost_by_phase_s") or {}),
            job.get("code_version"),
        )
        for job in facts["jobs"]
    ]
    columns = ("NAME", "STATE", "EPOCH", "STEP", "ETTR", "LAST HOUR", "MOST LOST TO", "CODE")
    print_table("Jobs", columns, rows, "none; `holdfast submit JOBFILE`")
    _lost([job for job in facts["jobs"] if job["state"] not in ENDED])


def _lost(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print what jobs lost most time to: a few lines of each, so that what is open below them is not missed."""
    found = [
        (
            job["name"],
            row["phase"].replace("_", " "),
            row["incident_class"] or "no incident",
            seconds(row["seconds"]),
        )
        for job in jobs
        for row in sorted(job.get("lost", ()), key=lambda row: -row["seconds"])[:MOST_LOST]
    ]
    found += [
        (job["name"], "scaled to zero", "by wish: not lost", seconds(job["scaled_to_zero_s"]))
        for job in jobs
        if job.get("scaled_to_zero_s")
    ]
    if found:
        print_table("Lost time", ("JOB", "PHASE", "INCIDENT CLASS", "LOST"), found, "")
    if more := sum(max(0, len(job.get("lost", ())) - MOST_LOST) for job in jobs):
        say(f"and {more} smaller parts of lost time: `holdfast status --json`")


def _checkpoints(facts: Mapping[str, Any]) -> None:
    """Print the room that checkpoints take on each machine, for jobs that have saved."""
    costs = [(job["name"], job.get("checkpoint") or {}) for job in facts["jobs"]]
    rows = [
        (
            name,
            cost["first_tier"],
            size(cost["rank_nbytes"]),
            size(cost["machine_nbytes_at_rest"]),
            size(cost["machine_nbytes_at_peak"]),
        )
        for name, cost in costs
        if cost.get("rank_nbytes")
    ]
    if rows:
        columns = ("JOB", "FIRST TIER", "A RANK'S STATE", "PER MACHINE AT REST", "AT MOST")
        print_table("Checkpoints", columns, rows, "")


def _machines(facts: Mapping[str, Any]) -> None:
    rows = [
        (
            machine["name"],
            state(machine["state"]),
            serves(machine.get("job"), machine.get("role")),
            machine.get("address"),
            str(machine.get("incarnation", ""))[:8],
            _seen(machine),
        )
        for machine in facts["machines"]
    ]
    print_table(
        "Machines", ("NAME", "STATE", "JOB", "AGENT", "INCARNATION", "SEEN"), rows, "none; `holdfast up`"
    )


def _seen(machine: Mapping[str, Any]) -> str:
    late_s = machine.get("late_s")
    return f"late: silent for {seconds(late_s)}" if late_s else ago(machine.get("seen_at"))


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
    for ask in facts.get("asks", ()):
        say(f"{ask['incident']} asks: {ask['question']} (`holdfast approve {ask['incident']}`, or `--no`)")
    at_zero = {job["name"] for job in facts["jobs"] if job["state"] == JobState.SCALED_TO_ZERO}
    for wait in facts.get("waits", ()):
        name, goes_on = wait["incident_id"], "runs on" if wait["runs_on"] else "stands still"
        meanwhile = "stays at zero" if wait["job"] in at_zero else goes_on
        say(
            f"{name} needs a person: {wait['why'].rstrip('.')}. Job {wait['job']} {meanwhile}; tried again at "
            f"{at(wait['next_at'])} at the latest (`holdfast incident {name}`)"
        )


def _restores(facts: Mapping[str, Any]) -> None:
    """Print whether the saves of running jobs could be restored, according to rehearsals, and where saves fail."""
    for job in facts["jobs"]:
        if job["state"] == "running" and (restore := job.get("restore")):
            say(f"{job['name']}: {restore['told']}")
        if skipped := job.get("skipped_steps"):
            steps = ", ".join(map(str, skipped))
            say(f"{job['name']}: skips the data of step {steps}, where it failed repeatedly")
        for signal in job.get("kept_signals", ()):
            say(
                f"{job['name']} is held: {signal}: acted on when the hold ends (`holdfast resume {job['name']}`)"
            )
        for each in job.get("unsaved", ()):
            say(f"{job['name']}: {each['told']} (since {ago(each['since'])})")


def most_lost(by_phase: Mapping[str, float]) -> str:
    """Return the phases that cost most: ``undetected 3 min, restarting 40 s``."""
    most = sorted(by_phase.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{phase.replace('_', ' ')} {seconds(value)}" for phase, value in most)
