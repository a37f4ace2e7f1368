"""Places of the replicas of jobs' roles, and the highest generation of each: one fact per job."""

from __future__ import annotations

from holdfast.models.roles import PlacesOfJob
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import MetaRow


class Places(Connection):
    """Read by a gateway when it begins to lead; it answers from memory then."""

    @repeat_on_conflict
    def set_places(self, job: str, places: PlacesOfJob) -> None:
        """Record where the replicas of ``job`` belong."""
        with self._write() as session:
            row = session.get(MetaRow, _key(job), with_for_update=True)
            if row is None:
                session.add(MetaRow(key=_key(job), value=places.model_dump_json()))
                session.flush()
            else:
                row.value = places.model_dump_json()

    def places(self, job: str) -> PlacesOfJob:
        """Return where the replicas of ``job`` belong; nothing, when it never had any."""
        with self._read() as session:
            row = session.get(MetaRow, _key(job))
            return PlacesOfJob.model_validate_json(row.value) if row else PlacesOfJob()


def _key(job: str) -> str:
    return f"places:{job}"
