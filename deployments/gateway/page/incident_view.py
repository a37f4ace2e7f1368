"""One incident: its signals and their evidence, the decisions and actions, and its time by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.deployments.gateway.api.approvals import question
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.page.overview import prefect_ui
from holdfast.deployments.gateway.runs import offline
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.history import Action
from holdfast.policies.accounting.lost_time import account
from holdfast.policies.accounting.timeline import PHASES, incident_phases
from holdfast.policies.classify.roots import separate
from holdfast.storage.ledger import Ledger


def incident_view(gateway: Gateway, incident_id: str) -> dict[str, Any]:
    """Return the whole view. Blocks for the ledger.

    Raises:
        UnknownError: no such incident.
    """
    ledger, now = gateway.site.ledger, gateway.site.clock.now()
    incident = ledger.incident(incident_id)
    actions = ledger.actions(incident_id)
    # What goes on now is measured to now; the answer then changes with every poll, as it should.
    until = incident.recovered_at or incident.closed_at or now
    since = incident.detected_at
    spent = account(incident_phases(incident, actions, since, until), since, until).by_phase()
    ui, run = prefect_ui(gateway), incident.flow_run_id
    alerts = ledger.alerts(incident_id)[::-1]
    following = {alert.key for alert in separate(alerts).cascades}
    return {
        "incident": incident.model_dump(mode="json", exclude={"alerts"}),
        "alerts": [alert.model_dump(mode="json") | {"follows": alert.key in following} for alert in alerts],
        "actions": [
            action.model_dump(mode="json") | {"phase": PHASES.get(action.kind)} for action in actions
        ],
        "until": until,
        "phases": spent,
        "ask": question(incident, actions),
        "next": _under_way(actions) if incident.state is IncidentState.OPEN else _wait(ledger, incident),
        "by_hand": [entry.model_dump(mode="json") for entry in ledger.by_hand(incident_id)],
        "repairs": [
            repair.model_dump(mode="json", exclude={"holder", "until"})
            for repair in ledger.repairs(incident_id=incident_id)
        ],
        "flow_run": f"{ui}/runs/flow-run/{run}" if ui and run and not offline.is_offline(run) else None,
    }


def _under_way(actions: Sequence[Action]) -> dict[str, Any]:
    """Describe the action under way of its playbook in words, and its start (Unix seconds) if that is known."""
    action = next((each for each in reversed(actions) if each.done_at is None), None)
    if action is None:
        return {"text": "Its playbook decides what to do", "at": None}
    return {"text": f"Under way: {action.key.replace('_', ' ')}, since", "at": action.begun_at}


def _wait(ledger: Ledger, incident: Incident) -> dict[str, Any] | None:
    """Return what a closed incident waits for, and when it is tried again (Unix seconds); None: it is over."""
    if incident.state is not IncidentState.NEEDS_HUMAN:
        return None
    wait = next((each for each in ledger.waits() if each.incident_id == incident.id), None)
    if wait is None:
        return None
    return {"text": f"{wait.why.rstrip('.')}. Tried again at the latest at", "at": wait.next_at}
