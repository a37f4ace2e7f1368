"""A stretch of training in which the trainer stood for others now and then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Stand(NamedTuple):
    """A time in which the trainer made no step because a role was away. Seconds."""

    begin: float
    end: float
    role: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


class Slower(NamedTuple):
    """A time in which a role took a part of the trainer's speed."""

    begin: float
    end: float
    role: str
    part: float

    def within(self, began: float, now: float) -> Stand:
        """Return for how long the trainer stood of what lies between two times: a part of it, taken as its end."""
        begin, end = max(self.begin, began), min(self.end, now)
        return Stand(end - max(0.0, end - begin) * self.part, end, self.role)


@dataclass(frozen=True)
class Stretch:
    """Training between two times, with the times in which it stood: in order, and apart from one another."""

    began: float
    now: float
    stands: Sequence[Stand] = ()

    @property
    def worked_s(self) -> float:
        """Seconds in which steps were made."""
        return self.now - self.began - sum(each.seconds for each in self.stands)

    def at(self, worked_s: float) -> float:
        """Return when so many seconds of work were done."""
        begin, left = self.began, worked_s
        for each in self.stands:
            if left <= each.begin - begin:
                break
            left -= each.begin - begin
            begin = each.end
        return begin + left

    def moving(self, begin: float, end: float) -> Iterable[tuple[float, float]]:
        """Return the times between two in which steps were made."""
        for each in self.stands:
            if each.begin >= end:
                break
            if each.end > begin:
                if each.begin > begin:
                    yield begin, each.begin
                begin = each.end
        if end > begin:
            yield begin, end
