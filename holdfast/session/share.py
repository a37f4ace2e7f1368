"""A rank's share of a step's global batch, for jobs whose number of ranks may change. Pure.

The batch of a step, and the order of the samples, depend on the step alone: at any number of ranks the same samples
make up the same step, none twice and none left out. What changes is who reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class SampleShare:
    """The samples of one step that one data-parallel rank trains on."""

    samples: range
    """Their places in the order of all samples, counted from 0 over the whole training."""
    batch: int
    """Samples of the step, of all ranks."""
    ranks: int
    """Data-parallel ranks that share them."""

    def split(self, at_most: int) -> Iterator[range]:
        """Yield the samples in parts of ``at_most``, for gradient accumulation.

        Raises:
            ValueError: ``at_most`` is below 1.
        """
        if at_most < 1:
            raise ValueError(f"Share.split({at_most}): expected 1 or more samples in a part")
        for start in range(0, len(self.samples), at_most):
            yield self.samples[start : start + at_most]

    def weight(self, count: int) -> float:
        """Return the factor for a loss that is the mean over ``count`` of these samples.

        The sum over the parts of all ranks, averaged over the ranks as DDP does, is then the mean over the batch.
        """
        return count * self.ranks / self.batch


def share_of(step: int, batch: int, rank: int, ranks: int) -> SampleShare:
    """Return the share of ``rank``: consecutive samples, as many as the others have or one more.

    Args:
        step: counted from 1.
        batch: samples of a step, of all ranks together.
        rank: this data-parallel rank.
        ranks: number of data-parallel ranks.

    Raises:
        ValueError: a number is out of range; or some rank would have no sample, and no gradient to reduce.
    """
    if step < 1:
        raise ValueError(f"step = {step}: expected 1 or more, the step that is about to be done")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank = {rank} of ranks = {ranks}: expected 0 to {ranks - 1}")
    if batch < ranks:
        raise ValueError(f"batch = {batch} with {ranks} ranks: expected at least a sample for each rank")
    first = (step - 1) * batch
    low, high = (first + batch * each // ranks for each in (rank, rank + 1))
    return SampleShare(samples=range(low, high), batch=batch, ranks=ranks)
