"""One incident: its signals and their evidence, what was decided and done, and where the time went."""

from __future__ import annotations

from typing import Any

from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.page.overview import prefect_ui, question
from holdfast.policies.lost_time import account
from holdfast.policies.timeline import PHASES, incident_phases


def incident_view(gateway: Gateway, incident_id: str) -> dict[str, Any]:
    """The whole view. Blocks for the ledger.

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
    ui = prefect_ui(gateway)
    return {
        "incident": incident.model_dump(mode="json", exclude={"alerts"}),
        "alerts": [alert.model_dump(mode="json") for alert in ledger.alerts(incident_id)][::-1],
        "actions": [
            action.model_dump(mode="json") | {"phase": PHASES.get(action.kind)} for action in actions
        ],
        "until": until,
        "phases": spent,
        "ask": question(incident, actions),
        "by_hand": [entry.model_dump(mode="json") for entry in ledger.by_hand(incident_id)],
        "repairs": [
            repair.model_dump(mode="json", exclude={"holder", "until"})
            for repair in ledger.repairs(incident_id=incident_id)
        ],
        "flow_run": f"{ui}/runs/flow-run/{incident.flow_run_id}" if ui and incident.flow_run_id else None,
    }
