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
    if not isinstance(description := type_description(value.dtype), str | list):
        more["type"] = description
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


def array_again(written: Any) -> Array:
    """Return the array that :func:`array` has written."""
    made: Array = np.lib.format.read_array(io.BytesIO(written[0]), allow_pickle=False)
    more = written[2] if len(written) > 2 else {}
    if "axes" in more:
        made = made.transpose(np.argsort(more["axes"]))
    if "type" in more:
        made = made.view(type_again(more["type"]))
    made.flags.writeable = written[1]
    return made


def scalar(value: Any) -> Any:
    """Return a scalar as an array without a dimension is written, and its content alone where that is all."""
    written = array(np.asarray(value))
    return written[0] if len(written) == 2 else written


def scalar_again(written: Any) -> Any:
    """Return the scalar that :func:`scalar` has written."""
    return array_again((written, True) if isinstance(written, bytes) else written)[()]


def type_description(kind: Type) -> Any:
    """Return what numpy's own files have of a type, where that is all; else all of it, in a dictionary.

    Raises:
        CheckpointError: it cannot be made again: one of another library.
    """
    description = _description(kind)
    if kind.names is None and kind.metadata is None and np.dtype(kind.str) == kind:
        return kind.str
    try:
        descr = None if _has_notes(description) else np.lib.format.dtype_to_descr(kind)
        if descr is not None and _description(np.lib.format.descr_to_dtype(descr)) == description:
            return descr
    except ValueError:  # fields that overlap
        pass
    if _description(type_again(description)) != description or type_again(description) != kind:
        raise CheckpointError(
            f"a numpy array of type {kind}, which is not numpy's own: expected numbers, text or dates. Convert it "
            "with astype(), or save its bytes as view('uint8')"
        )
    return description


def type_again(description: Any) -> Type:
    """Return the type that :func:`type_description` describes."""
    if not isinstance(description, dict):
        return np.lib.format.descr_to_dtype(description)
    found: Any
    if "fields" in description:
        names, formats, offsets, titles = ([*each] for each in zip(*description["fields"], strict=True))
        fields: Any = {"names": names, "formats": [type_again(each) for each in formats], "offsets": offsets}
        fields |= {"titles": titles, "itemsize": description["nbytes"]}
        found = np.dtype(fields, align=description["aligned"])
        found = (np.record, found) if description["record"] else found
    elif "base" in description:
        found = type_again(description["base"]), description["shape"]
    else:
        found = description["name"]
    made: Type = np.dtype(found, metadata=description["notes"]) if description["notes"] else np.dtype(found)
    return made


def _description(kind: Type) -> dict[str, Any]:
    description: dict[str, Any] = {"notes": dict(kind.metadata) if kind.metadata else None}
    if kind.subdtype is not None:
        return description | {"base": _description(kind.subdtype[0]), "shape": kind.subdtype[1]}
    if not kind.names:
        return description | {"name": kind.str}
    held: Any = kind.fields
    fields = [(name, *_field(*held[name])) for name in kind.names]
    description |= {"fields": fields, "nbytes": kind.itemsize}
    return description | {"aligned": kind.isalignedstruct, "record": kind.type is np.record}


def _field(kind: Type, offset: int, title: str | None = None) -> tuple[Any, ...]:
    return _description(kind), offset, title


def _has_notes(description: dict[str, Any]) -> bool:
    inside = (
        [description["base"]]
        if "base" in description
        else [each[1] for each in description.get("fields", ())]
    )
    return bool(description["notes"]) or any(map(_has_notes, inside))


def _axes(value: Array) -> list[int]:
    """Return the axes in the order in which they lie in memory, the longest step first."""
    return sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
