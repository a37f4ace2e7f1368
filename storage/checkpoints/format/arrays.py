"""Numpy arrays and scalars as plain data: their elements as numpy's own files have them, and what these leave out.

Such a file forgets alignment, notes (``metadata``), records, fields that overlap, and every order of axes but two.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from holdfast.errors import CheckpointError

Array = np.ndarray[Any, Any]
Type = np.dtype[Any]


def array(value: Array) -> tuple[Any, ...]:
    """Return the content of a file, whether the array can be written to, and the rest if there is any."""
    if value.dtype.hasobject:
        raise CheckpointError(
            f"a numpy array of type {value.dtype} holds Python objects: expected numbers, text or dates. Use a list"
        )
    plain: Array = np.asarray(value)
    more: dict[str, Any] = {}
    if not isinstance(told := type_told(value.dtype), str | list):
        more["type"] = told
        plain = plain.view(f"V{value.dtype.itemsize}")
    if not value.flags.forc:
        axes = _axes(value)
        plain = plain.transpose(axes)
        if axes != sorted(axes):
            more["axes"] = axes
    stream = io.BytesIO()
    np.lib.format.write_array(stream, plain, allow_pickle=False)
    content = stream.getvalue(), value.flags.writeable
    return (*content, more) if more else content


def array_again(told: Any) -> Array:
    """Return the array that :func:`array` has written."""
    made: Array = np.lib.format.read_array(io.BytesIO(told[0]), allow_pickle=False)
    more = told[2] if len(told) > 2 else {}
    if "axes" in more:
        made = made.transpose(np.argsort(more["axes"]))
    if "type" in more:
        made = made.view(type_again(more["type"]))
    made.flags.writeable = told[1]
    return made


def scalar(value: Any) -> Any:
    """Return a scalar as an array without a dimension is written, and its content alone where that is all."""
    told = array(np.asarray(value))
    return told[0] if len(told) == 2 else told


def scalar_again(told: Any) -> Any:
    """Return the scalar that :func:`scalar` has written."""
    return array_again((told, True) if isinstance(told, bytes) else told)[()]


def type_told(kind: Type) -> Any:
    """Return what numpy's own files have of a type, where that is all; else all of it, in a dictionary.

    Raises:
        CheckpointError: it cannot be made again: one of another library.
    """
    told = _told(kind)
    if kind.names is None and kind.metadata is None and np.dtype(kind.str) == kind:
        return kind.str
    try:
        descr = None if _has_notes(told) else np.lib.format.dtype_to_descr(kind)
        if descr is not None and _told(np.lib.format.descr_to_dtype(descr)) == told:
            return descr
    except ValueError:  # fields that overlap
        pass
    if _told(type_again(told)) != told or type_again(told) != kind:
        raise CheckpointError(
            f"a numpy array of type {kind}, which is not numpy's own: expected numbers, text or dates. Convert it "
            "with astype(), or save its bytes as view('uint8')"
        )
    return told


def type_again(told: Any) -> Type:
    """Return the type that :func:`type_told` describes."""
    if not isinstance(told, dict):
        return np.lib.format.descr_to_dtype(told)
    found: Any
    if "fields" in told:
        names, formats, offsets, titles = ([*each] for each in zip(*told["fields"], strict=True))
        fields: Any = {"names": names, "formats": [type_again(each) for each in formats], "offsets": offsets}
        fields |= {"titles": titles, "itemsize": told["nbytes"]}
        found = np.dtype(fields, align=told["aligned"])
        found = (np.record, found) if told["record"] else found
    elif "base" in told:
        found = type_again(told["base"]), told["shape"]
    else:
        found = told["name"]
    made: Type = np.dtype(found, metadata=told["notes"]) if told["notes"] else np.dtype(found)
    return made


def _told(kind: Type) -> dict[str, Any]:
    told: dict[str, Any] = {"notes": dict(kind.metadata) if kind.metadata else None}
    if kind.subdtype is not None:
        return told | {"base": _told(kind.subdtype[0]), "shape": kind.subdtype[1]}
    if not kind.names:
        return told | {"name": kind.str}
    held: Any = kind.fields
    fields = [(name, *_field(*held[name])) for name in kind.names]
    told |= {"fields": fields, "nbytes": kind.itemsize}
    return told | {"aligned": kind.isalignedstruct, "record": kind.type is np.record}


def _field(kind: Type, offset: int, title: str | None = None) -> tuple[Any, ...]:
    return _told(kind), offset, title


def _has_notes(told: dict[str, Any]) -> bool:
    inside = [told["base"]] if "base" in told else [each[1] for each in told.get("fields", ())]
    return bool(told["notes"]) or any(map(_has_notes, inside))


def _axes(value: Array) -> list[int]:
    """Return the axes in the order in which they lie in memory, the longest step first."""
    return sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
