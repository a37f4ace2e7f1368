"""The ledger: Holdfast's durable record. SQLite for one host, PostgreSQL beyond."""

from __future__ import annotations

from holdfast.storage.ledger.actions import Actions
from holdfast.storage.ledger.alerts import Alerts
from holdfast.storage.ledger.audit_log import AuditLog
from holdfast.storage.ledger.checkpoints import Checkpoints
from holdfast.storage.ledger.cordons import Cordons
from holdfast.storage.ledger.epochs import Epochs
from holdfast.storage.ledger.evictions import Evictions
from holdfast.storage.ledger.histories import Histories
from holdfast.storage.ledger.incidents import Incidents
from holdfast.storage.ledger.inputs import Inputs
from holdfast.storage.ledger.jobs import Jobs
from holdfast.storage.ledger.leases import Leases
from holdfast.storage.ledger.machines import Machines
from holdfast.storage.ledger.pending import PendingUpdates
from holdfast.storage.ledger.pool import Pools
from holdfast.storage.ledger.repairs import Repairs
from holdfast.storage.ledger.replica_places import Places
from holdfast.storage.ledger.rewind import Rewinds
from holdfast.storage.ledger.role_machines import RoleMachines
from holdfast.storage.ledger.saves import Saves
from holdfast.storage.ledger.standbys import Standbys
from holdfast.storage.ledger.versions import Versions
from holdfast.storage.ledger.waits import Waits


class Ledger(
    Jobs,
    Machines,
    Standbys,
    Cordons,
    Versions,
    PendingUpdates,
    Places,
    RoleMachines,
    Alerts,
    Incidents,
    Actions,
    Evictions,
    AuditLog,
    Epochs,
    Histories,
    Checkpoints,
    Saves,
    Pools,
    Leases,
    Waits,
    Inputs,
    Rewinds,
    Repairs,
):
    """All of it behind one object, one module per noun.

    Every method is one transaction: it happens whole or not at all, and may be repeated after a failure whose
    outcome is not known. Methods block for milliseconds; any number of threads and processes may use one
    database at once (each process its own ``Ledger``). All of them raise
    :class:`~holdfast.errors.UnavailableError` when the database does not answer.
    """
