"""Is a machine fit for the standby pool? What was seen of it in its present life, and a fresh look."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.models.agent import Check, Diagnose
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.machine import Machine
from holdfast.operations.context import Context
from holdfast.policies.classify import sure_signs


async def why_unfit(ctx: Context, machine: Machine) -> str:
    """Return why the machine must not be given to a job; empty: there is no reason.

    A sure sign that its present incarnation showed counts, also when nothing was done about it (mode ``observe``). That
    it was lost does not, where it answers again.
    """
    seen = [
        alert
        for alert in ctx.ledger.alerts_of(machine.name)
        if alert.firing
        and alert.incarnation in (None, machine.incarnation)
        and alert.at >= machine.registered_at
    ]
    if shown := _sign(ctx, machine, [each for each in seen if each.kind is not AlertKind.MACHINE_LOST]):
        return shown
    try:
        findings = await ctx.agent(machine).diagnose(
            Diagnose(
                job=f"{machine.name}~inspect",
                epoch=0,
                incarnation=machine.incarnation,
                check=Check.INSPECT,
                timeout_s=ctx.policy.diagnose.check_timeout_s,
            )
        )
    except HoldfastError:
        # Whether it lives is the gateway's to watch.
        return _sign(ctx, machine, seen)
    return "; ".join(f"{found.check}: {found.detail}" for found in findings if not found.ok and found.sure)


def _sign(ctx: Context, machine: Machine, alerts: Sequence[Alert]) -> str:
    return sure_signs.find(alerts, ctx.policy.classify).get(machine.name, "")
