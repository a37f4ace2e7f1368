"""``machines``, ``evict`` and ``release``."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import names
from holdfast.cli import context
from holdfast.cli.arguments import MachineName, checked, not_blank
from holdfast.cli.output import AsJson, ago, print_json, print_table, report, serves, state
from holdfast.models.machine import MachineState, Scope


def machines(
    job: Annotated[str | None, typer.Option(help="Only of this job.", callback=checked(names.JOB))] = None,
    state_: Annotated[MachineState | None, typer.Option("--state", help="Only in this state.")] = None,
    as_json: AsJson = False,
) -> None:
    """List machines: state, job, agent, and why one is cordoned."""
    with context.gateway() as gateway:
        every = gateway.machines()
    found = [row for row in every if job in (None, row.job) and state_ in (None, row.state)]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.name,
            state(row.state.value),
            serves(row.job, row.role),
            row.address,
            row.incarnation[:8],
            ago(row.seen_at),
            row.cordon_reason,
        )
        for row in found
    ]
    columns = ("NAME", "STATE", "JOB", "AGENT", "INCARNATION", "SEEN", "CORDONED BECAUSE")
    print_table("Machines", columns, rows, "none like that" if every else "none; `holdfast up`")


def evict(
    machine: MachineName,
    reason: Annotated[
        str, typer.Option(help="Why; kept with the cordon and in the incident.", callback=not_blank)
    ],
    scope: Annotated[
        Scope, typer.Option(help="Keep it from its job only, or from the whole cluster.")
    ] = Scope.CLUSTER,
    as_json: AsJson = False,
) -> None:
    """Take a machine out of service; its job goes on with a standby."""
    with context.gateway() as gateway:
        outcome = gateway.evict(machine, scope, reason)
    report(as_json, f"{machine}: {outcome}.", machine=machine, scope=scope.value, outcome=outcome)


def release(machine: MachineName, as_json: AsJson = False) -> None:
    """Give an evicted machine back: it restarts and joins the standby pool."""
    with context.gateway() as gateway:
        gateway.release(machine)
    report(
        as_json, f"{machine}: released. It registers as a standby when its agent is ready.", machine=machine
    )
