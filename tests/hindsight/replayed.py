"""A scenario's incident, replayed from the ledger that playing it left behind."""

from __future__ import annotations

from pathlib import Path

from holdfast.hindsight.compare import Comparison, compare
from holdfast.hindsight.incident_record import Record
from holdfast.hindsight.playbook_run import replay
from holdfast.plugins.policy import site_policy
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger


async def compared(folder: Path, incident_id: str, changes: str = "") -> Comparison:
    """By the policy that the scenario was played with, or with ``changes`` (YAML) in its place."""
    file = folder / "policy.yaml"
    if changes:
        file = folder / "other.yaml"
        file.write_text(changes)
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
    try:
        record = Record.read(ledger, incident_id)
        found = await replay(record, ledger, site_policy(file), Settings(home=folder))
        return compare(record, found, file.name)
    finally:
        ledger.close()
