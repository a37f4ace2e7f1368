"""The durable record of Holdfast: jobs, machines, incidents, actions, epochs, code versions."""

from holdfast.storage.ledger.alerts import RecordedAlert
from holdfast.storage.ledger.ledger import Ledger

__all__ = ["Ledger", "RecordedAlert"]
