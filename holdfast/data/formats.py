"""File formats: in which splits a file is read, and how a split becomes rows."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, Protocol, cast

from holdfast.data.files import Split
from holdfast.data.rows import Rows, wide
from holdfast.errors import SettingsError, SourceError

LINES_NBYTES = 4 << 20
"""A split of lines is about so large."""
_BUFFER_NBYTES = 256 << 10
"""Of a file: so much stays in the processor's cache, and a call for every few lines takes longer than they do."""
_EMPTY = re.compile(rb"\n\r?\n")
_ENDS = frozenset({"", "\n", "\r\n"})
_DECODE = json.JSONDecoder().raw_decode
"""Returns the value at the beginning of a line, and where it ends: :func:`json.loads` takes twice as long."""
_BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
"""Errors of :mod:`gzip` for a file that is damaged, cut off, or none."""


class Format(Protocol):
    """One file format, for one source: paths are those of one place. Any thread may call it."""

    def index(self, file: BinaryIO, path: str) -> list[Split]:
        """Return the splits of a file, with their numbers of rows."""
        ...

    def read(self, file: BinaryIO, path: str, split: Split) -> Rows:
        """Return the rows of a split."""
        ...

    def columns(self, file: BinaryIO, path: str) -> frozenset[str]:
        """Return the names of a file's columns that every file must have; none, where rows are no tables."""
        ...

    def schema(self, file: BinaryIO, path: str) -> Any:
        """Return the schema of the rows that :meth:`read` gives; None, where they are no tables."""
        ...


class Lines:
    """Lines of text, as iterating over a file gives them: with their ends. A file that ends in ``.gz`` is one split."""

    def index(self, file: BinaryIO, path: str) -> list[Split]:
        """Count lines."""
        if path.endswith(".gz"):
            count, last = 0, b"\n"
            try:
                with gzip.open(file) as inner:
                    for chunk in self._chunks(cast(BinaryIO, inner), path):
                        count, last = count + chunk.count(b"\n"), chunk
            except _BROKEN_GZIP as error:
                raise SourceError(f"{path}: damaged or cut off (gzip): {error}") from None
            return [Split(count + (not last.endswith(b"\n")), 0, 0)]
        return list(_ranges(self._chunks(file, path)))

    def read(self, file: BinaryIO, path: str, split: Split) -> Rows:
        """Read a range of lines."""
        try:
            lines = [*map(bytes.decode, islice(_raw_lines(file, path, split), split.rows))]
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: no UTF-8 text after byte {split.start}: {error.reason}") from None
        except _BROKEN_GZIP as error:
            raise SourceError(f"{path}: damaged or cut off (gzip): {error}") from None
        if len(lines) != split.rows:
            raise SourceError(
                f"{path}: {len(lines)} lines after byte {split.start}, {split.rows} when it was listed"
            )
        return lines

    def columns(self, file: BinaryIO, path: str) -> frozenset[str]:
        """Return nothing: each row is what it is."""
        return frozenset()

    def schema(self, file: BinaryIO, path: str) -> Any:
        """Return nothing: each row is what it is."""
        return None

    def _chunks(self, file: BinaryIO, path: str) -> Iterator[bytes]:
        """Yield the content."""
        while chunk := file.read(LINES_NBYTES):
            yield chunk


class JsonLines(Lines):
    """One JSON value per line."""

    def read(self, file: BinaryIO, path: str, split: Split) -> Rows:
        """Read a range of values."""
        lines = super().read(file, path, split)
        try:
            found = [_DECODE(line) for line in lines]
        except (ValueError, RecursionError):
            return _one_by_one(lines, path, split)
        if any(line[end:] not in _ENDS for line, (_, end) in zip(lines, found, strict=True)):
            return _one_by_one(lines, path, split)
        return [value for value, _ in found]

    def _chunks(self, file: BinaryIO, path: str) -> Iterator[bytes]:
        """Yield the content; what is no JSON at a glance is refused before the first step."""
        end, seen = b"", 0
        for chunk in super()._chunks(file, path):
            if not end and chunk.startswith(codecs.BOM_UTF8):
                raise SourceError(f"{path}: begins with a byte order mark: write it as UTF-8 without one")
            text = (end or b"\n") + chunk
            if empty := _EMPTY.search(text):
                number = seen + text.count(b"\n", 0, empty.start() + 1) + (end not in (b"", b"\n"))
                raise SourceError(f"{path}: line {number} after byte 0 is no JSON: it is empty")
            end, seen = chunk[-1:], seen + chunk.count(b"\n")
            yield chunk


class Parquet:
    """Apache Parquet, a row group at a time, as a ``pyarrow.Table``."""

    def __init__(self, columns: list[str] | None = None, optional: Sequence[str] = ()) -> None:
        """Read ``columns`` (None: all), of which a file may lack those that are ``optional``."""
        self._columns, self._optional = columns, frozenset(optional)
        self._filled = [each for each in optional if columns is None or each in columns]
        self._metadata: dict[str, Any] = {}

    def index(self, file: BinaryIO, path: str) -> list[Split]:
        """Read the footer."""
        metadata = self._open(file, path).metadata
        self._refuse_missing(metadata.schema, path)
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        return [Split(each.num_rows, number, each.total_byte_size) for number, each in enumerate(groups)]

    def read(self, file: BinaryIO, path: str, split: Split) -> Rows:
        """Read a row group."""
        opened = self._open(file, path)
        try:
            rows = opened.read_row_group(split.start, columns=self._columns, use_threads=False)
        except _broken(path) as error:
            raise SourceError(f"{path}: row group {split.start} cannot be read: {error}") from None
        return _filled(_widened(rows, path), self._filled, split.rows)

    def columns(self, file: BinaryIO, path: str) -> frozenset[str]:
        """Return those of the file; nothing where columns are asked for, of which each file was found to have all."""
        if self._columns is not None:
            return frozenset()
        return frozenset(self._open(file, path).schema_arrow.names) - self._optional

    def schema(self, file: BinaryIO, path: str) -> Any:
        """Return that of the columns which are read; of nested ones that are read in part nothing."""
        schema = self._open(file, path).schema_arrow
        if self._columns is None:
            return wide(schema)
        return wide(_pyarrow(path).schema([each for each in schema if each.name in self._columns]))

    def _refuse_missing(self, schema: Any, path: str) -> None:
        """Refuse columns that the file has not: pyarrow leaves them out without a word."""
        has = {schema.column(number).path for number in range(len(schema))}
        for name in self._columns or ():
            if name not in self._optional and not any(f"{each}.".startswith(f"{name}.") for each in has):
                raise SourceError(f"{path}: no column {name!r}; it has {', '.join(sorted(has))}")

    def _open(self, file: BinaryIO, path: str) -> Any:
        pa = _pyarrow(path)
        import pyarrow.parquet as pq  # noqa: PLC0415  (an extra)

        known = self._metadata.get(path)
        try:
            opened = pq.ParquetFile(file, metadata=known, pre_buffer=not _is_local(file))
        except pa.ArrowInvalid as error:
            raise SourceError(f"{path}: no Parquet file: {error}") from None
        if known is None:
            if len(self._metadata) > 256:
                self._metadata.clear()
            self._metadata[path] = opened.metadata
        return opened


class Arrow:
    """Arrow IPC files (Feather), a record batch at a time, as a ``pyarrow.Table``."""

    def __init__(self, optional: Sequence[str] = ()) -> None:
        """Read all columns; a file may lack those that are ``optional``."""
        self._optional = tuple(optional)

    def index(self, file: BinaryIO, path: str) -> list[Split]:
        """Read the record batches' lengths."""
        opened = self._open(file, path)
        return [
            Split((batch := self._batch(opened, path, number)).num_rows, number, batch.nbytes)
            for number in range(opened.num_record_batches)
        ]

    def read(self, file: BinaryIO, path: str, split: Split) -> Rows:
        """Read a record batch."""
        rows = _pyarrow(path).Table.from_batches([self._batch(self._open(file, path), path, split.start)])
        return _filled(_widened(rows, path), self._optional, split.rows)

    def columns(self, file: BinaryIO, path: str) -> frozenset[str]:
        """Return those of the file."""
        return frozenset(self._open(file, path).schema.names).difference(self._optional)

    def schema(self, file: BinaryIO, path: str) -> Any:
        """Return that of the file."""
        return wide(self._open(file, path).schema)

    def _batch(self, opened: Any, path: str, number: int) -> Any:
        try:
            return opened.get_batch(number)
        except _broken(path) as error:
            raise SourceError(f"{path}: record batch {number} cannot be read: {error}") from None

    def _open(self, file: BinaryIO, path: str) -> Any:
        pa = _pyarrow(path)
        try:
            return pa.ipc.open_file(file)
        except pa.ArrowInvalid as error:
            raise SourceError(f"{path}: no Arrow file: {error}") from None


FORMATS: dict[str, type[Lines | JsonLines | Parquet | Arrow]] = {
    "parquet": Parquet,
    "arrow": Arrow,
    "feather": Arrow,
    "jsonl": JsonLines,
    "ndjson": JsonLines,
    "txt": Lines,
    "lines": Lines,
}
"""By name, which is also the end of a file's name."""


TABLES = frozenset({"parquet", "arrow", "feather"})
"""Formats whose rows are tables."""


def lacks(path: str, columns: frozenset[str], first: str, wanted: frozenset[str]) -> str:
    """Return the message for a file without a column that the first one has; empty: it has all."""
    missing = sorted(wanted - columns)
    if not missing:
        return ""
    names = ", ".join(map(repr, missing))
    return (
        f"{path}: no column {names}, which {first} has: its rows would have nulls there. Write the file with it; or "
        "name it as optional=, for nulls, or name the columns that all Parquet files have as columns="
    )


def clashes(path: str, schema: Any, first: str, wanted: Any) -> str:
    """Return the message for a file whose columns have other types than those of the first; empty: they go together.

    They are put into one table as :func:`holdfast.data.rows.concat` does it, without rows.
    """
    if schema.equals(wanted):
        return ""
    pa = _pyarrow(path)
    try:
        pa.unify_schemas([wanted, schema], promote_options="default")
    except pa.ArrowException as error:
        return (
            f"{path}: its columns do not go together with those of {first}: {error}. Write the file with the same "
            "types, or give the source a decode= that makes columns alike"
        )
    return ""


def format_of(path: str, named: str = "") -> str:
    """Return the name of a file's format.

    Raises:
        SettingsError: it is none that is known.
    """
    name = named or path.removesuffix(".gz").rpartition("/")[2].rpartition(".")[2].lower()
    if name not in FORMATS:
        asked = f"format = {named!r}" if named else f"{path}: unknown format by its name"
        raise SettingsError(f"{asked}: expected one of {', '.join(FORMATS)} (or give format=)")
    return name


def split_name(kind: str, split: Split) -> str:
    """Return which part of a file of this format a split is, for messages."""
    if kind in TABLES:
        return f"{'row group' if kind == 'parquet' else 'record batch'} {split.start} ({split.rows} rows)"
    return f"the {split.rows} lines from byte {split.start} on"


def _widened(rows: Any, path: str) -> Any:
    """Return a table whose columns can be put together with others of their kind.

    Raises:
        SourceError: pyarrow cannot make them so.
    """
    schema = wide(rows.schema)
    if schema.equals(rows.schema):
        return rows
    try:
        return rows.cast(schema)
    except _pyarrow(path).ArrowException as error:
        raise SourceError(f"{path}: columns that cannot be shuffled: {error}") from None


def _filled(rows: Any, names: Sequence[str], count: int) -> Any:
    """Return a table with nulls in the columns that it lacks."""
    import pyarrow as pa  # noqa: PLC0415  (an extra)

    for name in names:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(count))
    return rows


def _raw_lines(file: BinaryIO, path: str, split: Split) -> Iterable[bytes]:
    """Return the lines from the beginning of a split on."""
    if path.endswith(".gz"):
        return io.BufferedReader(cast(io.RawIOBase, gzip.open(file)), _BUFFER_NBYTES)
    if not _is_local(file):
        file.seek(split.start)
        return io.BytesIO(file.read(split.nbytes))
    raw: io.FileIO = cast(Any, file).raw
    raw.seek(split.start)
    return io.BufferedReader(raw, _BUFFER_NBYTES)


def _is_local(file: BinaryIO) -> bool:
    """Return whether small reads cost little, and reading past a split brings nothing from afar."""
    return isinstance(getattr(file, "raw", None), io.FileIO)


def _one_by_one(lines: Sequence[str], path: str, split: Split) -> list[Any]:
    """Return the values of lines, whatever white space they have.

    Raises:
        SourceError: a line is not one value.
    """
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path}: line {number} after byte {split.start} is no JSON: {error}") from None
    return found


def _ranges(chunks: Iterable[bytes]) -> Iterator[Split]:
    """Yield ranges of whole lines."""
    start = at = rows = 0
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        rows += chunk.count(b"\n")
        if end:
            yield Split(rows, start, at + end - start)
            start, rows = at + end, 0
        at += len(chunk)
    if at > start:
        yield Split(1, start, at - start)


def _broken(path: str) -> tuple[type[Exception], ...]:
    """Return the errors of pyarrow for bytes that do not fit the footer of their file."""
    return (OSError, _pyarrow(path).ArrowException)


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415  (an extra)
    except ImportError:
        raise SettingsError(f"{path}: needs pyarrow: pip install 'holdfast[data]'") from None
    return pa
