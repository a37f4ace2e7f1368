"""One machine's row, for all that change it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from holdfast.errors import UnknownError
from holdfast.storage.ledger.schema import MachineRow

NAMED_AT_ONCE = 500
"""Machines that one statement names at most."""


def machine_row(session: Session, name: str, lock: bool = False) -> MachineRow:
    """Return the machine's row, locked if it is to be changed.

    Raises:
        UnknownError: no such machine.
    """
    row = session.get(MachineRow, name, with_for_update=lock or None)
    if row is None:
        raise no_machine(name)
    return row


def no_machine(name: str) -> UnknownError:
    """Return the error of a machine that is not there."""
    return UnknownError(f"no machine {name!r}. `holdfast machines` lists those there are.")


def free(row: MachineRow) -> None:
    """Leave the machine without job, role and cordon."""
    row.job = row.cordon_scope = row.cordon_reason = None
    row.role = ""
