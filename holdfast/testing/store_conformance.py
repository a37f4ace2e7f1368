"""Requirements on every object store, as pytest tests: a store's test module subclasses :class:`StoreConformance`."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from holdfast.errors import DamagedError, UnavailableError, UnknownError
from holdfast.storage.objects import ObjectStore

MIB = 1 << 20


class Unseekable(io.RawIOBase):
    """A stream like a pipe: of unknown length, read once."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        taken = self._left if size < 0 else min(size, self._left)
        self._left -= taken
        return b"x" * taken


def pattern(nbytes: int) -> memoryview:
    """Return bytes that differ from place to place."""
    return memoryview(b"".join(n.to_bytes(8, "little") for n in range(nbytes // 8 + 1)))[:nbytes]


class StoreConformance:
    """Subclasses provide two fixtures: ``store``, with an empty bucket, and ``nowhere``, whose bucket is missing."""

    no_bucket = "bucket"
    """A regular expression that the error of a missing bucket matches."""

    @pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, io.BytesIO])
    def test_what_is_put_is_got(self, store: ObjectStore, wrap: Callable[[bytes], Any]) -> None:
        """From bytes of any kind or a file."""
        store.put("job/a", wrap(b"content"))
        assert store.get("job/a") == b"content"
        assert store.head("job/a").nbytes == 7
        assert store.head("job/a").modified_at > 1e9

    def test_a_file_is_sent_from_its_position(self, store: ObjectStore) -> None:
        """So that a part of it can be an object."""
        file = io.BytesIO(b"0123456789")
        file.seek(4)
        store.put("k", file)
        assert store.get("k") == b"456789"

    def test_an_empty_object_is_an_object(self, store: ObjectStore, tmp_path: Path) -> None:
        """Not a missing one."""
        store.put("empty", b"")
        assert store.exists("empty")
        assert (store.get("empty"), store.fetch("empty", tmp_path / "e")) == (b"", 0)

    def test_a_key_put_again_is_replaced(self, store: ObjectStore) -> None:
        """Shorter content included."""
        store.put("k", b"long content")
        store.put("k", b"short")
        assert store.get("k") == b"short"

    def test_ranges_are_exact(self, store: ObjectStore) -> None:
        """A shorter object is an error, never short bytes."""
        store.put("k", bytes(range(100)))
        assert store.get_range("k", 10, 5) == bytes(range(10, 15))
        assert store.get_range("k", 99, 1) == bytes([99])
        assert store.get_range("k", 10, 0) == b""
        for start, nbytes in ((95, 10), (100, 1), (500, 5)):
            with pytest.raises(UnknownError, match=r"has \d of the \d+ bytes asked for"):
                store.get_range("k", start, nbytes)

    def test_a_range_comes_in_chunks(self, store: ObjectStore) -> None:
        """Whole ones but the last; an object that is too short is an error before any byte is taken."""
        store.put("k", bytes(range(100)))
        chunks: list[bytes] = []
        store.read_range("k", 10, 80, 30, chunks.append)
        assert chunks == [bytes(range(10, 40)), bytes(range(40, 70)), bytes(range(70, 90))]
        chunks.clear()
        store.read_range("k", 10, 0, 30, chunks.append)
        with pytest.raises(UnknownError, match="has 90 of the 91 bytes asked for"):
            store.read_range("k", 10, 91, 30, chunks.append)
        assert chunks == []

    def test_what_takes_a_range_may_refuse_it(self, store: ObjectStore) -> None:
        """Its error ends the read; the store goes on working."""
        store.put("k", bytes(100))

        def refuse(_: bytes) -> None:
            raise DamagedError("no")

        with pytest.raises(DamagedError):
            store.read_range("k", 0, 100, 10, refuse)
        assert store.get("k") == bytes(100)

    def test_a_missing_object_is_named(self, store: ObjectStore, tmp_path: Path) -> None:
        """By every method that needs it; nothing is left on disk."""
        asks: list[Callable[[], object]] = [
            lambda: store.get("no/such"),
            lambda: store.head("no/such"),
            lambda: store.get_range("no/such", 0, 1),
            lambda: store.read_range("no/such", 0, 1, 1, print),
            lambda: store.fetch("no/such", tmp_path / "file"),
        ]
        for ask in asks:
            with pytest.raises(UnknownError, match="no object 'no/such'"):
                ask()
        assert not store.exists("no/such")
        assert list(tmp_path.iterdir()) == []

    def test_lists_are_by_prefix_and_in_order(self, store: ObjectStore) -> None:
        """Prefixes end anywhere, also within a name."""
        for key in ("a/2", "a/10", "ab", "b/1", "a/c/d"):
            store.put(key, b"1" * len(key))
        assert [found.key for found in store.list("a/")] == ["a/10", "a/2", "a/c/d"]
        assert [found.key for found in store.list("a")] == ["a/10", "a/2", "a/c/d", "ab"]
        assert [(found.key, found.nbytes) for found in store.list("b/")] == [("b/1", 3)]
        assert list(store.list("z")) == []
        assert len(list(store.list(""))) == 5

    def test_long_lists_are_complete(self, store: ObjectStore) -> None:
        """S3 gives at most 1,000 keys per answer."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: store.put(f"many/{n:05d}", b""), range(1005)))
        assert [found.key for found in store.list("many/")] == [f"many/{n:05d}" for n in range(1005)]

    def test_deleting_twice_is_no_error(self, store: ObjectStore) -> None:
        """Only the named object goes."""
        store.put("a/1", b"")
        store.put("a/2", b"")
        store.delete("a/1")
        store.delete("a/1")
        store.delete("never/was")
        assert [found.key for found in store.list("")] == ["a/2"]

    def test_what_was_sent_in_one_piece_is_fetched_in_parts(self, store: ObjectStore, tmp_path: Path) -> None:
        """A range has another checksum than the object."""
        store.put("k", b"y" * 40 * MIB)
        assert store.fetch("k", tmp_path / "k") == 40 * MIB
        assert (tmp_path / "k").read_bytes() == b"y" * 40 * MIB

    @pytest.mark.parametrize("nbytes", [0, 5, 16 * MIB, 40 * MIB + 3])
    def test_streams_of_any_length_are_stored(self, store: ObjectStore, tmp_path: Path, nbytes: int) -> None:
        """In parts, without knowing the length; they come back to a file, whole."""
        stream: BinaryIO = Unseekable(nbytes)  # type: ignore[assignment]
        store.put_stream("large", stream)
        assert store.head("large").nbytes == nbytes
        assert store.fetch("large", tmp_path / "new" / "large") == nbytes
        assert (tmp_path / "new" / "large").read_bytes() == b"x" * nbytes
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["large"]

    def test_a_stream_that_breaks_leaves_no_object(self, store: ObjectStore) -> None:
        """A torn upload is never taken for a whole one."""

        class Breaks(Unseekable):
            def read(self, size: int = -1) -> bytes:
                if self._left < 10 * MIB:
                    raise OSError("the disk went away")
                return super().read(size)

        with pytest.raises(OSError, match="the disk went away"):
            store.put_stream("torn", Breaks(60 * MIB))  # type: ignore[arg-type]
        assert not store.exists("torn")

    def test_threads_may_share_a_store(self, store: ObjectStore) -> None:
        """Its clients are made once."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: store.put(f"t/{n}", str(n).encode()), range(40)))
            assert list(pool.map(lambda n: store.get(f"t/{n}"), range(40))) == [
                str(n).encode() for n in range(40)
            ]

    def test_a_bucket_that_is_there_is_kept(self, store: ObjectStore) -> None:
        """With what is in it."""
        store.put("k", b"kept")
        store.ensure_bucket()
        assert store.get("k") == b"kept"

    def test_a_missing_bucket_is_named(self, nowhere: ObjectStore, tmp_path: Path) -> None:
        """By every method that needs it; never taken for a missing object."""
        store = nowhere
        asks: list[Callable[[], object]] = [
            lambda: store.put("k", b"x"),
            lambda: store.put_stream("k", io.BytesIO(b"x" * 40 * MIB)),
            lambda: store.put_view("k", pattern(40 * MIB), within_s=60),
            lambda: store.folders(""),
            lambda: store.delete_many(["k"]),
            lambda: store.get("k"),
            lambda: store.get_range("k", 0, 1),
            lambda: store.fetch("k", tmp_path / "k"),
            lambda: store.head("k"),
            lambda: store.exists("k"),
            lambda: list(store.list("")),
            lambda: store.delete("k"),
        ]
        for ask in asks:
            with pytest.raises(UnknownError, match=self.no_bucket):
                ask()

    @pytest.mark.parametrize("nbytes", [0, 5, 300_000, 16 * MIB, 16 * MIB + 1, 40 * MIB + 3])
    def test_memory_is_stored_as_it_lies(self, store: ObjectStore, nbytes: int) -> None:
        """In one request or in parts; the object is whole, and no upload is left open."""
        view = pattern(nbytes)
        store.put_view("k", view, within_s=60)
        assert store.head("k").nbytes == nbytes
        assert store.get("k") == view
        assert store.unfinished("") == ()

    def test_an_upload_that_is_late_is_given_up(self, store: ObjectStore) -> None:
        """No object, and no parts that are left behind."""
        for nbytes in (5, 40 * MIB):
            with pytest.raises(UnavailableError, match=r"'late' .* not done within 0 s, given up"):
                store.put_view("late", pattern(nbytes), within_s=0)
        assert not store.exists("late")
        assert store.unfinished("") == ()

    def test_folders_are_what_lies_below_a_prefix(self, store: ObjectStore) -> None:
        """Each once, whatever is in it; plain objects are none."""
        for key in ("a/x/1", "a/x/2", "a/y/z/1", "a/plain", "b/x/1"):
            store.put(key, b"1")
        assert store.folders("a/") == ("a/x/", "a/y/")
        assert store.folders("") == ("a/", "b/")
        assert store.folders("nothing/") == ()

    def test_objects_are_deleted_together(self, store: ObjectStore) -> None:
        """Missing ones do not matter."""
        for n in range(23):
            store.put(f"d/{n}", b"")
        store.put("kept", b"")
        store.delete_many([*(f"d/{n}" for n in range(23)), "d/never"])
        store.delete_many([])
        assert [found.key for found in store.list("")] == ["kept"]
