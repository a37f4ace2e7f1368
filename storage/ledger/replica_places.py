"""Replicas of jobs' roles: where they belong, the highest generation of each, and how long they ran."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter
from sqlalchemy import bindparam, select

from holdfast.models.roles import PlacesOfJob, RoleTime
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import MetaRow

_TIMES = TypeAdapter(dict[str, RoleTime])

_META_VALUE = select(MetaRow.value).where(MetaRow.key == bindparam("key"))


class Places(Connection):
    """Read by a gateway when it begins to lead; it answers from memory then."""

    def set_places(self, job: str, places: PlacesOfJob) -> None:
        """Record where the replicas of ``job`` belong."""
        self._put(f"places:{job}", places.model_dump_json())

    def places(self, job: str) -> PlacesOfJob:
        """Return where the replicas of ``job`` belong; nothing, when it never had any."""
        stored = self._stored(f"places:{job}")
        return PlacesOfJob.model_validate_json(stored) if stored else PlacesOfJob()

    def set_role_times(self, job: str, times: Mapping[str, RoleTime]) -> None:
        """Record how long the replicas of each role were wanted and ran."""
        self._put(f"role_times:{job}", _TIMES.dump_json(dict(times)).decode())

    def role_times(self, job: str) -> dict[str, RoleTime]:
        """Return how long the replicas of each role were wanted and ran, by role."""
        stored = self._stored(f"role_times:{job}")
        return _TIMES.validate_json(stored) if stored else {}

    @repeat_on_conflict
    def _put(self, key: str, value: str) -> None:
        with self._write() as session:
            row = session.get(MetaRow, key, with_for_update=True)
            if row is None:
                session.add(MetaRow(key=key, value=value))
                session.flush()
            else:
                row.value = value

    def _stored(self, key: str) -> str | None:
        with self._look() as view:
            return view.scalar(_META_VALUE, {"key": key})
