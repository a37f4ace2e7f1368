"""``pool``: the standby pool, its size, the reasoning, and what another site or another rule would ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import context
from holdfast.cli.arguments import finite
from holdfast.cli.output import AsJson, print_json, print_table, say
from holdfast.client.gateway import understood
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.policies.config.pool import SparePoolPolicy
    from holdfast.policies.pool.spare_pool import PoolPlan

_ROWS = 16
"""Sizes shown without leaving any out."""
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0}


def pool(
    machines: Annotated[int | None, typer.Option(min=1, help="What if: so many machines run jobs.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0, help="What if: so many failures per machine and day.", callback=finite),
    ] = None,
    quantile: Annotated[
        float | None,
        typer.Option(help="What if: the pool is enough in this share of replenish times.", callback=finite),
    ] = None,
    replenish_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="What if: a used standby is replaced in 90m, 12h, 2d.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the standby pool: its size, why, what it costs; with options, what it would be.

    With --machines and --rate together no site is asked.
    """
    changed = {"percentile": share(quantile), "replenish_h": hours(replenish_time)}
    if not any(value is not None for value in (machines, rate, *changed.values())):
        _as_it_is(as_json)
        return
    facts = {} if machines is not None and rate is not None else _facts()
    found = what_if(
        facts, machines, rate, {key: value for key, value in changed.items() if value is not None}
    )
    if as_json:
        print_json({"what_if": True, "plans": [plan.model_dump(mode="json") for plan in found]})
        return
    for plan in found:
        _show(plan.model_dump(mode="json"))


def what_if(
    facts: Mapping[str, Any], machines: int | None, rate: float | None, changed: Mapping[str, float]
) -> list[PoolPlan]:
    """Return plans for the site's groups, or for one site of ``machines``, with other figures.

    Raises:
        RefusedError: a figure is outside its range.
        SettingsError: the site has several groups and ``machines`` is given for all.
    """
    from holdfast.policies.config.policy import Policy  # noqa: PLC0415
    from holdfast.policies.config.pool import SparePoolPolicy  # noqa: PLC0415
    from holdfast.policies.pool.spare_pool import GroupHistory, plan  # noqa: PLC0415  (scipy takes half a second)

    policy: SparePoolPolicy = (
        understood(SparePoolPolicy, facts["policy"]) if facts else Policy.load().spare_pool
    )
    policy = policy.model_copy(update=dict(changed))
    rows: Sequence[Mapping[str, Any]] = facts.get("plans") or [{"group": "", "machines": 0}]
    if len(rows) > 1 and machines is not None:
        named = ", ".join(row["group"] or "the rest" for row in rows)
        raise SettingsError(f"--machines {machines}: this site has the groups {named}; give --rate as well")
    return [
        plan(
            GroupHistory(
                group=row["group"],
                machines=row["machines"] if machines is None else machines,
                failures=row.get("failures", 0),
                machine_days=row.get("machine_days", 0.0),
            ),
            policy,
            rate=rate,
        )
        for row in rows
    ]


def hours(text: str | None) -> float | None:
    """Return ``90m``, ``12h`` or ``2d`` in hours.

    Raises:
        SettingsError: it is none of these.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhd])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise SettingsError(f"--replenish-time {text!r}: expected a time above 0 such as 90m, 12h or 2d")
    return float(match[1]) * _HOURS[match[2]]


def share(quantile: float | None) -> float | None:
    """Return a quantile between 0 and 1.

    Raises:
        SettingsError: it is not.
    """
    if quantile is not None and not 0 < quantile < 1:
        raise SettingsError(f"--quantile {quantile:g}: expected a share between 0 and 1, such as 0.99")
    return quantile


def _facts() -> dict[str, Any]:
    with context.gateway() as gateway:
        return gateway.pool()


def _as_it_is(as_json: bool) -> None:
    facts = _facts()
    if as_json:
        print_json(facts)
        return
    say(f"target       {facts['target']}  ({facts.get('reason') or 'no reason given'})")
    for key in ("standbys", "provisioning"):
        say(f"{key:12} {', '.join(facts.get(key) or ()) or 'none'}")
    for plan in facts.get("plans", ()):
        _show(plan)


def _show(plan: Mapping[str, Any]) -> None:
    switch = plan["catastrophe"]
    say(f"\n{plan['group'] or 'all machines'}: {plan['target']} standbys for {plan['machines']} machines")
    for reason in plan["reasons"]:
        say(f"  {reason}")
    say(f"  {plan['target']} are enough in {plan['coverage']:.2%} of replenish times")
    say(
        f"  a whole switch ({switch['machines']} machines, {switch['weight']:.0%} of evictions): "
        f"{switch['short']} would have to be rescheduled, about {switch['seconds']:.0f} s"
    )
    rows = [
        (
            f"{cost['size']}{' <- target' if cost['size'] == plan['target'] else ''}"
            f"{' <- cheapest' if cost['size'] == plan['cheapest'] else ''}",
            f"{cost['coverage']:.2%}",
            f"{cost['idle']:.0f}",
            f"{cost['saved']:.0f}",
            f"{cost['saved'] - cost['idle']:+.0f}",
        )
        for cost in _worth_showing(plan)
    ]
    print_table("", ("STANDBYS", "ENOUGH IN", "IDLE machine-h/day", "SAVED machine-h/day", "NET"), rows, "")


def _worth_showing(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Select from many sizes: none, and those near the target and near the cheapest."""
    costs = plan["costs"]
    if len(costs) <= _ROWS:
        return list(costs)
    about = (plan["target"], plan["cheapest"])
    return [
        cost for cost in costs if not cost["size"] or any(abs(cost["size"] - size) <= 2 for size in about)
    ]
