"""Whether a lost machine is replaced before its playbook runs, where the other ranks keep their processes. Pure.

Nothing is diagnosed for a machine that is surely lost: it goes, a standby takes its slot, and the job goes on. The
ranks that kept their process wait for just that, so the gateway makes these acts while Prefect starts the playbook's
run. It does so with no less evidence than the playbook asks for, and leaves everything that needs a second look to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert, AlertKind
from holdfast.models.base import Frozen
from holdfast.models.classes import IncidentClass
from holdfast.policies.join_names import join_names


class Loss(Frozen):
    """Facts about a job whose ranks were stopped after it lost a machine."""

    incident_class: IncidentClass
    machine: str = ""
    """The machine that is accused."""
    seen_lost: bool = False
    """Whether its agent was found dead in the life that serves the job: the alert ``machine_lost`` names it."""
    unreached: tuple[str, ...] = ()
    """Machines that the order to stop did not reach."""
    silent: tuple[str, ...] = ()
    """Of these, those that refused no connection: ranks may run on there."""
    sure: tuple[str, ...] = ()
    """Machines of the job that alerts surely accuse."""
    kept: int = 0
    """Ranks whose process waits for the next epoch."""
    asks: str = ""
    """Why a person is asked before the eviction; empty: no one is."""
    breaker: str = ""
    """Why the breaker forbids the eviction; empty: it does not."""
    standby: bool = False
    """Whether a standby can take the place now."""


def seen_lost(alerts: Iterable[Alert], machine: str, incarnation: str) -> bool:
    """Return whether an alert reports that this life of the machine was found dead."""
    return any(
        alert.kind is AlertKind.MACHINE_LOST and alert.machine == machine and alert.incarnation == incarnation
        for alert in alerts
    )


def why_playbook(loss: Loss) -> str:
    """Return why the playbook replaces the machine, in its own time; empty: it is replaced at once."""
    others = [name for name in loss.sure if name != loss.machine]
    asks = {
        f"a {loss.incident_class.value} is no lost machine": loss.incident_class
        is not IncidentClass.MACHINE_FAULT,
        f"{loss.machine or 'no machine'} was not found dead": not loss.seen_lost,
        "no rank kept its process": not loss.kept,
        f"{join_names(others)} surely fail, too": bool(others),
        f"the order to stop did not reach {join_names(loss.unreached) or 'none'}, and {loss.machine} is lost": (
            loss.unreached != (loss.machine,)
        ),
        f"ranks of {join_names(loss.silent)} may run on": bool(loss.silent),
        loss.asks: bool(loss.asks),
        loss.breaker: bool(loss.breaker),
        "no standby can take its place now": not loss.standby,
    }
    return next((why for why, applies in asks.items() if applies), "")
