"""Digests of the ranks' states: small enough to be reported, and compared with those of their replicas."""

from __future__ import annotations

import base64
import binascii
import struct
import sys
from array import array

from pydantic import Field, field_validator, model_validator

from holdfast.models.base import Frozen
from holdfast.models.names import Rank

MOST_PATHS = 10_000
"""Of one rank; all further ones are reported as one."""
REST = "(all others)"

_DIGEST = struct.Struct("<Q")


class RankDigests(Frozen):
    """Digests of what one rank saved: one of each tensor, or of the rank's part of it."""

    rank: Rank
    paths: int = Field(ge=0)
    """Which of :attr:`StateDigests.paths` it has."""
    digests: str
    """Of 8 bytes each, base64, in the order of the paths."""

    @classmethod
    def of(cls, rank: int, paths: int, digests: list[int]) -> RankDigests:
        """From numbers."""
        packed = b"".join(map(_DIGEST.pack, digests))
        return cls(rank=rank, paths=paths, digests=base64.b64encode(packed).decode())

    @field_validator("digests")
    @classmethod
    def _whole(cls, value: str) -> str:
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("digests: expected base64") from None
        if len(raw) % _DIGEST.size:
            raise ValueError(f"digests: {len(raw)} bytes are no digests of {_DIGEST.size} bytes each")
        return value

    def values(self) -> array[int]:
        """Return the digests: as small as they come, for there may be thousands of ranks."""
        found = array("Q", base64.b64decode(self.digests))
        if sys.byteorder == "big":
            found.byteswap()
        return found


class StateDigests(Frozen):
    """Digests of what the ranks of one machine saved at one step."""

    step: int = Field(ge=0)
    paths: tuple[tuple[str, ...], ...]
    """Names of tensors, sorted, with the box where it is a part; ranks that hold the same share one list."""
    ranks: tuple[RankDigests, ...]

    @model_validator(mode="after")
    def _each_has_its_path(self) -> StateDigests:
        for each in self.ranks:
            if each.paths >= len(self.paths):
                raise ValueError(f"rank {each.rank}: list {each.paths} of {len(self.paths)} lists of paths")
            have, names = len(each.values()), len(self.paths[each.paths])
            if have != names:
                raise ValueError(f"rank {each.rank}: {have} digests for {names} paths")
        return self

    @classmethod
    def of(cls, step: int, held: dict[int, dict[str, int]]) -> StateDigests:
        """Build the digests of ranks from ``{rank: {path: digest}}``."""
        lists: dict[tuple[str, ...], int] = {}
        ranks = []
        for rank, digests in sorted(held.items()):
            paths = tuple(sorted(digests))
            number = lists.setdefault(paths, len(lists))
            ranks.append(RankDigests.of(rank, number, [digests[path] for path in paths]))
        return cls(step=step, paths=tuple(lists), ranks=tuple(ranks))

    def parts(self) -> list[StateDigests]:
        """Split by list of paths, into messages that a gateway takes, however many ranks a machine has."""
        return [
            StateDigests(
                step=self.step,
                paths=(paths,),
                ranks=tuple(
                    each.model_copy(update={"paths": 0}) for each in self.ranks if each.paths == number
                ),
            )
            for number, paths in enumerate(self.paths)
        ]

    def by_rank(self) -> dict[int, dict[str, int]]:
        """Return the digests as :meth:`of` was given them."""
        return {
            each.rank: dict(zip(self.paths[each.paths], each.values(), strict=True)) for each in self.ranks
        }
