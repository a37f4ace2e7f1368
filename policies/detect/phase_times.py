"""Ranks that take unusually long for a part of a step. Marks for people to look at; nothing acts on them.

MegaScale section 5.2 draws the heat map by which slow machines are seen; what counts as an outlier here is the usual
robust rule: far from the median in units of the median absolute deviation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.models.base import Frozen

FAR = 6.0
"""Deviations from the median beyond which a rank stands out; 1.4826 x the MAD is one (that of a normal sample)."""
MORE = 1.1
"""A rank must also take this much of the median: where all are alike, noise is no outlier."""
LEAST_S = 0.001
"""Nor does a difference count that is too short to matter."""
FEWEST = 4
"""With fewer ranks none stands out."""


class Spread(Frozen):
    """One phase over all ranks that have it."""

    median_s: float
    worst_s: float
    outliers: tuple[int, ...] = ()
    """Positions of the ranks that stand out by being slow, slowest first."""


def spread(values: Sequence[float | None] | npt.NDArray[np.float64]) -> Spread:
    """Compute median and outliers of seconds by rank (None or NaN: not reported)."""
    seconds = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    known = seconds[~np.isnan(seconds)]
    if not known.size:
        return Spread(median_s=0.0, worst_s=0.0)
    median = float(np.median(known))
    result = Spread(median_s=median, worst_s=float(known.max()))
    if known.size < FEWEST:
        return result
    deviation = 1.4826 * float(np.median(np.abs(known - median)))
    limit = max(median + FAR * deviation, median * MORE, median + LEAST_S)
    far = np.flatnonzero(np.nan_to_num(seconds, nan=-1.0) > limit)
    slowest = far[np.argsort(-seconds[far], kind="stable")]
    return result.model_copy(update={"outliers": tuple(int(rank) for rank in slowest)})
