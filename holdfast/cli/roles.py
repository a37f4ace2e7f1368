"""Roles of jobs, as ``status`` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.cli.output import percent, print_table, say
from holdfast.models.job import ENDED


def show(jobs: Iterable[Mapping[str, Any]]) -> None:
    """Print the roles of all jobs that have any and have not ended, and a line for each replica that needs a person."""
    rows = [(job["name"], role) for job in jobs if job["state"] not in ENDED for role in job.get("roles", ())]
    if not rows:
        return
    columns = ("JOB", "ROLE", "KIND", "RUNNING", "RAN", "RESTARTS", "STATE")
    lines = [
        (
            name,
            role["name"],
            role["kind"],
            f"{role['running']} of {role['replicas']}",
            percent(role.get("share")),
            role["restarts"],
            state(role),
        )
        for name, role in rows
    ]
    print_table("Roles", columns, lines, "")
    for name, role in rows:
        for warning in crowded({"roles": [role]}):
            say(f"{name}: {warning}.")
        for place in role["places"]:
            if place["phase"] == "failed":
                say(f"{name}: {role['name']} {place['index']} needs a person: {place['why']}")


def crowded(row: Mapping[str, Any], name: str = "") -> list[str]:
    """Return the warnings about cores in the status of a job: of one role, or of all."""
    roles = (role for role in row.get("roles", ()) if role["name"] == (name or role["name"]))
    return [
        role["crowded"] for role in roles if role.get("crowded")
    ]  # a gateway of an older release has none


def state(role: Mapping[str, Any]) -> str:
    """Return the state of a role in a few words."""
    if role["waits_for"]:
        return f"waits for {', '.join(role['waits_for'])}"
    own = role.get("own_machines") or {"wanted": 0, "names": []}
    lacks = (
        f"{len(own['names'])} of {own['wanted']} own machines" if len(own["names"]) < own["wanted"] else ""
    )
    no_room = f"no room for {role['unplaced']}" if role["unplaced"] else ""
    phases = [each["phase"] for each in role.get("places", ())]
    failed = phases.count("failed")
    asks = f"{failed} need{'s' if failed == 1 else ''} a person" if failed else ""
    if lacks or no_room or asks:
        return ", ".join(filter(None, (lacks, no_room, asks)))
    if phases and all(each == "done" for each in phases):
        return "done"
    return "ready" if role["ready"] else "running" if role["running"] else "starting"
