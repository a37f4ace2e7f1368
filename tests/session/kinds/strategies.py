"""Nested states that hypothesis makes, and changes from save to save; small examples are simple ones."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from tests.session.kinds.values import LARGE, Point, Record

DTYPES = (
    torch.float32,
    torch.int64,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.float64,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.uint16,
)
SHAPES = ((), (0,), (3,), (2, 3), (1, 0, 4), (LARGE,))


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], first: int) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count, dtype=torch.int32) % 100 + first).to(torch.float32).to(dtype).reshape(shape)


tensors = st.builds(_tensor, st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.integers(0, 9))
arrays = st.builds(
    lambda kind, count: np.arange(count).astype(kind), st.sampled_from("bhqfd?"), st.integers(0, 5)
)
keys = st.one_of(
    st.text(max_size=4),
    st.sampled_from(["a", "b", "a.b", "0", "@ref", "state"]),
    st.integers(-2, 2),
    st.booleans(),
    st.none(),
    st.tuples(st.integers(0, 1), st.sampled_from("ab")),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=6),
    st.complex_numbers(),
)
leaves = st.one_of(scalars, tensors, arrays)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda each: collections.deque(each, maxlen=2)),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        st.builds(Point, st.integers(), inner),
        st.builds(Record, st.integers(), inner),
        st.frozensets(st.integers(), max_size=3),
    )


values = st.recursive(leaves, _containers, max_leaves=12)
parts = st.dictionaries(st.sampled_from(["a", "b", "a.b", "long name", "0"]), values, max_size=4)
histories = st.lists(parts, min_size=1, max_size=5)
"""The state of one part at each save; keys, shapes and types change as hypothesis likes."""
