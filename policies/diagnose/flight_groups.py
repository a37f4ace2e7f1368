"""Records of one process group, side by side: how far each member came, which ones wait, which ones disagree."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.models.agent import FlightRecord
from holdfast.policies.join_names import join_names

_IN_ORDER = frozenset({"nccl", "ncclx", "rccl", "rcclx"})
"""Backends that run the collectives of a group one after the other; gloo has several threads."""
_BOTH_WAYS = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "_all_gather",
    "reduce_scatter",
    "_reduce_scatter",
    "barrier",
)
"""Operations that no member completes without every member's part."""


@dataclass(frozen=True)
class Recorded:
    """One group of one backend."""

    name: str
    members: tuple[int, ...]
    """Empty: not known."""
    records: tuple[FlightRecord, ...]

    @property
    def title(self) -> str:
        """Its name and members in words."""
        return f"{self.name} (ranks {join_names(self.members)})" if self.members else self.name

    @functools.cached_property
    def newest(self) -> int:
        """Number of the newest collective that any member issued."""
        return max(record.enqueued for record in self.records)

    @functools.cached_property
    def recorded(self) -> frozenset[int]:
        """Members with a record."""
        return frozenset(record.rank for record in self.records)

    @functools.cached_property
    def _inside(self) -> dict[int, int]:
        """Number of the collective that a member waits in, by its rank."""
        first = {record.rank: record for record in reversed(self.records)}
        return {rank: record.completed + 1 for rank, record in first.items() if _waits(record)}

    @functools.cached_property
    def _missing(self) -> dict[int, frozenset[int]]:
        """The ranks that have not come to a collective that another one waits in, by its number."""
        return {
            number: frozenset(other.rank for other in self.records if not _came_to(other, number))
            for number in self._waited_in()
        }

    @functools.cached_property
    def awaited(self) -> frozenset[int]:
        """The ranks that some member waits for."""
        return frozenset[int]().union(*(self._missing[number] for number in set(self._inside.values())))

    def waiting(self) -> frozenset[int]:
        """Return the members that are inside an operation that is not complete, and came to it."""
        return self._waiting

    @functools.cached_property
    def _waiting(self) -> frozenset[int]:
        return frozenset(record.rank for record in self.records if _waits(record) or record.sending)

    def late(self) -> frozenset[int]:
        """Return the members that have not come to a collective that another one waits in."""
        late = frozenset[int]().union(*self._missing.values())
        return late & frozenset(self.members) if self.members else late

    def waited_for(self, recorded: Collection[int]) -> frozenset[int]:
        """Return the members for whom others wait; of those without a record only ones that left none anywhere.

        Args:
            recorded: ranks with a record of any group.
        """
        numbers = self._waited_in()
        gone = frozenset(self.members).difference(recorded) if numbers else frozenset()
        return self.late() | gone | self._peers(recorded)

    def _peers(self, recorded: Collection[int]) -> frozenset[int]:
        """Return the peers of point-to-point operations that are not in theirs."""
        sending = {record.rank for record in self.records if record.sending}
        named = {peer for record in self.records if record.sending for peer in record.peers}
        return frozenset(named - sending)

    def blocked(self) -> frozenset[int]:
        """Return the members that wait for one that has not come."""
        return frozenset(rank for rank in self.waiting() if self.blocks(rank))

    def blocks(self, rank: int) -> frozenset[int]:
        """Return the ranks that ``rank`` waits for in this group."""
        number = self._inside.get(rank)
        return frozenset() if number is None else self._missing[number]

    def stuck(self) -> frozenset[int]:
        """Return all members, when all are in one collective; empty: they are not, or are not known."""
        numbers = {record.completed + 1 for record in self.records if _waits(record)}
        together = len(numbers) == 1 and all(_waits(record) for record in self.records)
        return (
            frozenset(self.members) if together and self.recorded == frozenset(self.members) else frozenset()
        )

    def not_noted(self) -> frozenset[int]:
        """Return the members whose own GPU or driver lost the end of a collective.

        Another member completed a later one that needs their part, and theirs run one after the other.
        """
        newest = max((number for record in self.records for number in _with_all(record)), default=None)
        return frozenset(
            record.rank
            for record in self.records
            if record.backend in _IN_ORDER and record.enqueued > record.completed
            if newest is not None and newest >= record.completed + 2
        )

    def disagreeing(self) -> frozenset[int]:
        """Return members whose operation differs from that of most others, under a number that some rank waits in."""
        found: set[int] = set()
        for by_rank in self._different():
            counted = Counter(by_rank.values()).most_common()
            if counted[0][1] > counted[1][1]:
                found |= {rank for rank, text in by_rank.items() if text != counted[0][0]}
        return frozenset(found)

    def mismatches(self) -> Iterator[str]:
        """Describe different operations under one number."""
        for number, by_rank in self._disputed():
            by_text: dict[str, list[int]] = defaultdict(list)
            for rank, text in sorted(by_rank.items()):
                by_text[text].append(rank)
            named = " and ".join(
                f"{text} on ranks {join_names(ranks)}" for text, ranks in sorted(by_text.items())
            )
            yield f"group {self.title}: collective {number} is {named}: the ranks disagree, look at the code"

    def _different(self) -> Iterable[dict[int, str]]:
        return (by_rank for _, by_rank in self._disputed())

    def _disputed(self) -> Iterator[tuple[int, dict[int, str]]]:
        for number in self._waited_in():
            by_rank = {record.rank: text for record in self.records if (text := _operation(record, number))}
            if len(set(by_rank.values())) > 1:
                yield number, by_rank

    def _waited_in(self) -> list[int]:
        return sorted({record.completed + 1 for record in self.records if _waits(record)})


def _with_all(record: FlightRecord) -> Iterator[int]:
    """Yield the numbers of collectives that it completed, and that need all members to complete."""
    for number, text in record.recent.items():
        if number <= record.completed and text.startswith(_BOTH_WAYS):
            yield number


def _operation(record: FlightRecord, number: int) -> str:
    """Return the operation that it issued under ``number``, as far as it is known."""
    return record.recent.get(number, record.operation if number == record.enqueued else "")


def _waits(record: FlightRecord) -> bool:
    return record.enqueued > record.completed and _came_to(record, record.completed + 1)


def _came_to(record: FlightRecord, number: int) -> bool:
    return (
        record.completed >= number
        or (record.enqueued if record.started is None else record.started) >= number
    )


def by_group(records: Sequence[FlightRecord], world: int) -> list[Recorded]:
    """Put the records of one group together: the same name, backend and members.

    A member that issued nothing has a record without a backend; one without members belongs to the only group of its
    name that there is.
    """
    spoken: dict[tuple[str, str, tuple[int, ...]], list[FlightRecord]] = defaultdict(list)
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    for record in records:
        # A group of all ranks has ten thousand members, which each of them lists.
        if (members := known.get(record.ranks)) is None:
            members = known[record.ranks] = tuple(sorted(rank for rank in record.ranks if rank < world))
        spoken[record.group, record.backend, members].append(record)
    for name, backend, members in list(spoken):
        if backend and members:
            continue
        wider = [
            key
            for key in spoken
            if key[0] == name and key[1:] != (backend, members) and _covers(key, backend, members)
        ]
        if len(wider) == 1:
            spoken[wider[0]] += spoken.pop((name, backend, members))
    return [Recorded(name, members, tuple(found)) for (name, _, members), found in sorted(spoken.items())]


def _covers(key: tuple[str, str, tuple[int, ...]], backend: str, members: tuple[int, ...]) -> bool:
    """Return whether a group may be the one of which backend or members are missing."""
    return (key[1] == backend or not backend) and (key[2] == members or not members)
