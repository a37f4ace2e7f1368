"""Report of the standby pool's size as markdown with plots: text only, from the plans."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from scipy.stats import binom

from holdfast.policies.pool.spare_pool import PoolPlan, probability
from holdfast.tasks.story import escape


def markdown(plans: Sequence[PoolPlan], history_days: float, did: str) -> str:
    """Write size, reasoning, the catastrophic case, costs and a plot for each group."""
    total = sum(plan.target for plan in plans)
    lines = [f"# Standby pool: {total}", "", f"From the last {history_days:g} days. {escape(did)}", ""]
    for plan in plans:
        lines += _group(plan)
    lines += [
        "",
        "Method: a percentile of Binomial(machines, failures per replenish time) (ByteDance, arXiv 2509.16293).",
        "",
    ]
    return "\n".join(lines)


def _group(plan: PoolPlan) -> list[str]:
    switch = plan.catastrophe
    best = next(cost for cost in plan.costs if cost.size == plan.cheapest)
    chosen = next((cost for cost in plan.costs if cost.size == plan.target), plan.costs[-1])
    return [
        f"## {escape(plan.group or 'all machines')}: {plan.target}",
        "",
        *(f"- {escape(reason)}" for reason in plan.reasons),
        f"- {plan.target} are enough in {plan.coverage:.2%} of replenish times",
        f"- a whole switch ({switch.machines} machines, {switch.weight:.0%} of evictions): {switch.short} would have "
        f"to be rescheduled, about {switch.seconds:.0f} s",
        f"- {chosen.size} standbys idle {chosen.idle:.0f} machine-hours a day and save {chosen.saved:.0f}; "
        f"cheapest would be {best.size} (net {best.net:+.0f}, against {chosen.net:+.0f})",
        "",
        f"![{escape(plan.group or 'all machines')}](data:image/svg+xml;base64,{plot(plan)})",
        "",
        "| standbys | enough in | idle machine-h/day | saved machine-h/day | net |",
        "|--:|--:|--:|--:|--:|",
        *(
            f"| {cost.size} | {cost.coverage:.2%} | {cost.idle:.0f} | {cost.saved:.0f} | {cost.net:+.0f} |"
            for cost in plan.costs
        ),
        "",
    ]


def plot(plan: PoolPlan) -> str:
    """Plot failures per replenish time, and the cost of each size: an SVG, base64."""
    # It takes half a second to import, and no playbook needs it.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    sizes = [cost.size for cost in plan.costs]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    p = probability(plan.rate, plan.replenish_h)
    left.bar(sizes, binom.pmf(sizes, plan.machines, p), color="#3f8fe0", label="probability")
    left.axvline(plan.computed, color="#d64550", linestyle="--", label=f"{plan.percentile:.4g} quantile")
    left.axvline(plan.target, color="#2a9d8f", label=f"target {plan.target}")
    left.set(xlabel=f"machines that fail within {plan.replenish_h:g} h", title=f"{plan.machines} machines")
    left.legend(frameon=False)
    right.plot(sizes, [cost.saved for cost in plan.costs], label="saved", color="#2a9d8f")
    right.plot(sizes, [cost.idle for cost in plan.costs], label="idle", color="#d64550")
    right.plot(sizes, [cost.net for cost in plan.costs], label="net", color="#333333")
    right.axvline(plan.cheapest, color="#9e9e9e", linestyle=":", label=f"cheapest {plan.cheapest}")
    right.set(xlabel="standbys", ylabel="machine-hours per day", title="cost and saving")
    right.legend(frameon=False)
    out = io.BytesIO()
    # Without a date and with its own salt, the same plan gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "holdfast"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return base64.b64encode(out.getvalue()).decode()
