"""Rows of a batch: a list, or a pyarrow Table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from holdfast.data.source_order import Numbers
from holdfast.errors import SettingsError

Rows = Any
"""A list of anything, or a ``pyarrow.Table``."""


def cut(rows: Rows, first: int, last: int) -> Rows:
    """Return the rows from ``first`` to ``last``."""
    if isinstance(rows, list):
        return rows if (first, last) == (0, len(rows)) else rows[first:last]
    return rows.slice(first, last - first)


def take(rows: Rows, order: Numbers | None) -> Rows:
    """Return the rows in the given order."""
    if order is None:
        return rows
    if isinstance(rows, list):
        return list(map(rows.__getitem__, order.tolist()))
    return rows.combine_chunks().take(order)


def wide(schema: Any) -> Any:
    """Return a schema whose columns can be put together and shuffled, whatever is in them.

    Dictionaries of several files may together have more values than short indices count, as those of pandas'
    categories; views, as those of polars, cannot be shuffled by pyarrow.
    """
    import pyarrow as pa  # noqa: PLC0415  (an extra)

    fields = [each.with_type(_wide_type(pa, each.type)) for each in schema]
    return pa.schema(fields, schema.metadata)


def _wide_type(pa: Any, of: Any) -> Any:
    types = pa.types
    if types.is_dictionary(of):
        index = pa.int32() if of.index_type.bit_width < 32 else of.index_type
        return pa.dictionary(index, _wide_type(pa, of.value_type), ordered=of.ordered)
    if types.is_struct(of):
        return pa.struct([each.with_type(_wide_type(pa, each.type)) for each in of])
    if types.is_list(of) or types.is_large_list(of):
        inner = of.value_field.with_type(_wide_type(pa, of.value_type))
        return pa.list_(inner) if types.is_list(of) else pa.large_list(inner)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(of, of)


def concat(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, one after the other.

    Raises:
        SettingsError: some are lists and others tables, or tables' columns have types that do not go together.
    """
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(each, list) for each in parts):
        return list(chain.from_iterable(parts))
    if any(isinstance(each, list) for each in parts):
        raise SettingsError(
            "some sources have tables and others lists of rows: give each of them a decode= that returns the same"
        )
    import pyarrow as pa  # noqa: PLC0415  (an extra)

    if all(each.schema.equals(parts[0].schema) for each in parts):
        return pa.concat_tables(parts)
    try:
        return pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:
        raise SettingsError(
            f"tables of one batch do not go together: {error}. Give the sources a decode= that makes columns alike"
        ) from None
