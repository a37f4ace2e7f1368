"""Leases in the state of a job whose ranks change: one rank has the book, all ranks have the name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.data.lease_book import LeaseBook
from holdfast.session.part import Part


def lease_part(book: LeaseBook | None) -> Part:
    """Return the part for the state given to the Session; every rank gives one.

    Args:
        book: of this rank; None on the others.
    """
    return Part(
        book if book is not None else _Elsewhere(),
        merge=lambda states: next((each for each in states if each), {}),
        split=lambda whole, _rank, _ranks: whole,
    )


class _Elsewhere:
    """The book of another rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Leave it to the rank that has the book."""
