"""Which machines flap, by what the ledger has heard of them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.clock import Clock
from holdfast.models.machine import MachineState
from holdfast.policies import flapping
from holdfast.policies.policy import FlapPolicy
from holdfast.storage.ledger import Ledger


def find(ledger: Ledger, names: Iterable[str], now: float, policy: FlapPolicy) -> dict[str, str]:
    """Those of the machines that flap, and why."""
    heard = {name: ledger.alerts_of(name, since=now - policy.window_s) for name in names}
    told = {
        name: flapping.why([each.recorded_at for each in alerts if flapping.counts(each)], now, policy)
        for name, alerts in heard.items()
    }
    return {name: why for name, why in told.items() if why}


def of_the_pool(ledger: Ledger, clock: Clock, policy: FlapPolicy) -> list[str]:
    """Standbys that must not be given to a job now: they come back when their window has passed."""
    standbys = [machine.name for machine in ledger.machines(state=MachineState.STANDBY)]
    return list(find(ledger, standbys, clock.now(), policy))
