"""How many standbys each group of machines needs, by what the ledger remembers of failures."""

from __future__ import annotations

from holdfast.models.machine import Machine, MachineState
from holdfast.policies.config.pool import SparePoolPolicy
from holdfast.policies.pool import busy, machine_groups, spare_pool
from holdfast.policies.pool.spare_pool import PoolPlan
from holdfast.storage.ledger import Ledger

HOUR_S = 3600.0

IN_POOL = (MachineState.STANDBY, MachineState.PROVISIONING)


def plans(ledger: Ledger, policy: SparePoolPolicy, now: float) -> tuple[PoolPlan, ...]:
    """Size the pool of each group of machines that there is.

    Raises:
        RefusedError: a figure of the policy is outside its range.
    """
    since, busy_since = now - policy.history_days * busy.DAY_S, now - policy.busy_h * HOUR_S
    before = ledger.pool()
    failures = machine_groups.split({**ledger.failures_by_machine(since)}, policy)
    epochs = ledger.epochs_after(min(since, busy_since))
    days = machine_groups.split(busy.machine_days(epochs, since, now), policy)
    most = busy.most_at_once(epochs, busy_since, lambda name: machine_groups.group_of(name, policy))
    active = machine_groups.split(
        [known.name for known in ledger.machines(state=MachineState.ACTIVE)], policy
    )
    held = machine_groups.split([known.name for known in pooled(ledger)], policy)
    found = []
    for group in machine_groups.groups(policy):
        # The rest is a group of its own only where it has machines.
        if not group.name and policy.groups and not (active[""] or held[""] or most.get("")):
            continue
        history = spare_pool.GroupHistory(
            group=group.name,
            machines=max(int(active[group.name]), most.get(group.name, 0)),
            failures=int(failures[group.name]),
            machine_days=days[group.name],
        )
        now_held = before.groups.get(group.name, None if policy.groups else before.target)
        found.append(spare_pool.plan(history, group.policy, now_held if before.at else None))
    return tuple(found)


def pooled(ledger: Ledger) -> list[Machine]:
    """Return the machines that stand by, or are on their way to."""
    return [machine for state in IN_POOL for machine in ledger.machines(state=state)]
