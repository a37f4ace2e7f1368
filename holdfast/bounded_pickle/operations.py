"""Operations of a pickle, and how the reader does each; one that is not here is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.bounded_pickle.counting_reader import MARK, CountingReader


def _constant(value: Any) -> Callable[[CountingReader, Any], None]:
    return lambda reader, _: reader.stack.append(value)


def _tuple(count: int) -> Callable[[CountingReader, Any], None]:
    def do(reader: CountingReader, _: Any) -> None:
        parts = reader.last(count) if count else []
        reader.make(tuple(parts), parts)

    return do


def _made_of_mark(kind: Callable[[list[Any]], Any]) -> Callable[[CountingReader, Any], None]:
    def do(reader: CountingReader, _: Any) -> None:
        parts = reader.taken()
        reader.make(kind(parts), parts)

    return do


def _dictionary(reader: CountingReader, _: Any) -> None:
    values = reader.taken()
    reader.make({}, [])
    reader.update(values)


_NOTHING: Callable[[CountingReader, Any], None] = lambda reader, _: None  # noqa: E731
PLAIN: dict[str, Callable[[CountingReader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _NOTHING),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
            *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
            *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        ),
        CountingReader.push,
    ),
    **dict.fromkeys(("INT", "LONG", "LONG1", "LONG4"), CountingReader.push_integer),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "MARK": _constant(MARK),
    "POP": lambda reader, _: reader.stack.pop(),
    "EMPTY_TUPLE": _tuple(0),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": _made_of_mark(tuple),
    "EMPTY_LIST": lambda reader, _: reader.make([], []),
    "LIST": _made_of_mark(list),
    "EMPTY_DICT": lambda reader, _: reader.make({}, []),
    "DICT": _dictionary,
    "APPEND": lambda reader, _: reader.extend(reader.last(1)),
    "APPENDS": lambda reader, _: reader.extend(reader.taken()),
    "SETITEM": lambda reader, _: reader.update(reader.last(2)),
    "SETITEMS": lambda reader, _: reader.update(reader.taken()),
    "MEMOIZE": lambda reader, _: reader.put(len(reader.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), CountingReader.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), CountingReader.get),
}
WITH_KINDS: dict[str, Callable[[CountingReader, Any], None]] = {
    **PLAIN,
    "GLOBAL": lambda reader, argument: reader.named(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.named(*reader.last(2)),
    "REDUCE": lambda reader, _: reader.call(),
    "NEWOBJ": lambda reader, _: reader.new(),
    "BUILD": lambda reader, _: reader.build(),
    "BINPERSID": lambda reader, _: reader.persist(),
}
