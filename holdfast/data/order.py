"""A shuffle of any size, of which any place can be asked for: no list of all samples is kept or skipped over.

A Feistel network over the next even number of bits is a permutation whatever its round function (Luby, Rackoff
1988); places that fall outside the size walk on until they fall inside (Black, Rogaway 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_U = np.uint64


def shuffled(places: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return the sample at each of ``places`` (each in 0..size-1) in the order that ``seed`` gives."""
    half = _U(max(1, -(-(size - 1).bit_length() // 2)))
    mask = _U((1 << int(half)) - 1)
    keys = mixed_bits(np.arange(_ROUNDS, dtype=_U) + mixed_bits(np.array([seed % 2**64], dtype=_U)))
    found = places.astype(_U)
    outside = np.ones(len(found), dtype=bool)
    while outside.any():
        left, right = found[outside] >> half, found[outside] & mask
        for key in keys:
            left, right = right, left ^ (mixed_bits(right ^ key) & mask)
        found[outside] = (left << half) | right
        outside = found >= size
    return found.astype(np.int64)


def permuted(size: int, key: int) -> NDArray[np.int64]:
    """Return a whole shuffle at once, which is several times as fast; ``key`` is a number of 63 bits without order."""
    # The keys are all different: every way of sorting gives the same.
    return np.argsort(mixed_bits(np.arange(size, dtype=_U) + _U(key))).astype(np.int64, copy=False)


def mixed_bits(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    value = value + _U(0x9E3779B97F4A7C15)
    value = (value ^ (value >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U(27))) * _U(0x94D049BB133111EB)
    return value ^ (value >> _U(31))
