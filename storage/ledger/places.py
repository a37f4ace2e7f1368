"""Places of the replicas of jobs' roles, and the highest generation of each: one fact per job."""

from __future__ import annotations

from pydantic import Field

from holdfast.models.base import Frozen
from holdfast.models.roles import Place
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import MetaRow


class PlacesOfJob(Frozen):
    """Where the replicas of a job belong. Generations only rise, also over submissions under the same name."""

    places: tuple[Place, ...] = ()
    generations: dict[str, dict[int, int]] = Field(default_factory=dict)
    """By role and index."""

    def with_role(self, role: str, places: tuple[Place, ...]) -> PlacesOfJob:
        """Return it with these places of one role instead of those it had."""
        others = tuple(each for each in self.places if each.role != role)
        highest = dict(self.generations.get(role, {}))
        for each in places:
            highest[each.index] = max(highest.get(each.index, 0), each.generation)
        return PlacesOfJob(places=(*others, *places), generations={**self.generations, role: highest})

    def of(self, role: str) -> tuple[Place, ...]:
        """Return the places of one role."""
        return tuple(each for each in self.places if each.role == role)


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
