"""Rows read as columns, for models: objects that track changes cost twice as much, and nothing is changed here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from holdfast.storage.ledger.schema import Base

M = TypeVar("M", bound=BaseModel)


@functools.cache
def columns(
    row: type[Base],
    model: type[BaseModel],
    *keys: str,
    without: tuple[str, ...] = (),
    by: tuple[str, ...] = (),
) -> Select[Any]:
    """Select the fields of ``model`` from the columns with their names.

    Each of ``keys`` is a column that has the value of the parameter of its name. Built once: that takes as long as to
    have it answered. The fields ``without`` are no columns, or are not asked for. Rows come ordered ``by`` columns.
    """
    query = select(*(getattr(row, name) for name in model.model_fields if name not in without))
    query = query.where(*(getattr(row, key) == bindparam(key) for key in keys))
    return query.order_by(*(getattr(row, name) for name in by)) if by else query


def models(
    view: SqlConnection | Session, query: Select[Any], model: type[M], values: Mapping[str, Any] | None = None
) -> list[M]:
    """Return the rows of a query of :func:`columns`; ``values`` of its parameters."""
    rows = view.execute(query, values)
    names = tuple(rows.keys())
    return [model.model_validate(dict(zip(names, row, strict=True))) for row in rows.tuples()]
