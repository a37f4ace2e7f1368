"""Files from afar: S3, listings over HTTP, fsspec, and places of other packages."""

from __future__ import annotations

import functools
import io
import json
import threading
import types
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import botocore.exceptions
import fsspec
import httpx
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from holdfast import data
from holdfast.data import at_once, http_listing, patience, places
from holdfast.data.agree import _tried
from holdfast.data.folder import FolderPlace
from holdfast.data.fsspec_place import FsspecPlace
from holdfast.data.s3_prefix import S3Place
from holdfast.errors import SettingsError, SourceError, UnavailableError
from holdfast.storage.objects.s3 import S3Store
from tests.data.files import ids, write
from tests.storage.conftest import (
    ACCESS_KEY,
    SECRET_KEY,
    MakeStore,
    make_store,
    moto_endpoint,
    rclone_endpoint,
    store,
)

__all__ = ["make_store", "moto_endpoint", "rclone_endpoint", "store"]
FILES = {"dt=2026-11-24/hour=00/a b.parquet": range(20), "dt=2026-11-24/hour=01/c.jsonl": range(20, 50)}


def lists(source: Any, **more: Any) -> list[int]:
    dataset = data.Dataset(source, 5, threads=2, lanes=2, **more)
    found = [sample for rows in dataset for sample in ids(rows)]
    dataset.close()
    return found


def both(make: Any) -> list[int]:
    """Of the Parquet file and of the JSON lines."""
    parquet = lists(make(where=lambda file: file.path.endswith("parquet")))
    return parquet + lists(make(where=lambda file: file.path.endswith("jsonl")))


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ACCESS_KEY_ID", ACCESS_KEY),
        ("SECRET_ACCESS_KEY", SECRET_KEY),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.usefixtures("aws")
def test_an_s3_prefix_is_read(store: S3Store, tmp_path: Path) -> None:
    """At each S3 implementation; what is not below the prefix or begins with _ does not count."""
    for path, samples in FILES.items():
        store.put(f"code/{path}", write(tmp_path / path, list(samples)).read_bytes())
    store.put("code/_SUCCESS", b"")
    store.put("codes/other.jsonl", b"{}")
    source = functools.partial(data.s3, f"s3://{store.bucket}/code", endpoint=store.endpoint)
    assert sorted(both(source)) == list(range(50))


@pytest.mark.usefixtures("aws")
def test_an_object_that_changes_is_named(store: S3Store, tmp_path: Path) -> None:
    store.put("x/a.jsonl", write(tmp_path / "a.jsonl", list(range(10))).read_bytes())
    source = data.s3(f"s3://{store.bucket}/x/", endpoint=store.endpoint)
    dataset = data.Dataset(source, 5)
    dataset.prepare()
    store.put("x/a.jsonl", (tmp_path / "a.jsonl").read_bytes().replace(b"1", b"2"))
    with pytest.raises(
        SourceError, match=rf"s3://{store.bucket}/x/a\.jsonl is not the file that was listed: it has .*ETag"
    ):
        next(dataset)
    store.delete("x/a.jsonl")
    with pytest.raises(SourceError, match=r"a\.jsonl is not the file that was listed: it is gone"):
        next(dataset)


@pytest.mark.usefixtures("aws")
def test_what_is_not_in_s3_is_named(make_store: MakeStore) -> None:
    store = make_store()
    with pytest.raises(SourceError, match=rf"s3://{store.bucket}/x/: no such bucket"):
        next(data.Dataset(data.s3(f"s3://{store.bucket}/x/", endpoint=store.endpoint), 1))
    store.ensure_bucket()
    with pytest.raises(SourceError, match="no object has this prefix"):
        next(data.Dataset(data.s3(f"s3://{store.bucket}/x/", endpoint=store.endpoint), 1))
    with pytest.raises(SettingsError, match="expected s3://bucket/prefix/"):
        data.s3("bucket/x")


class Ranged(SimpleHTTPRequestHandler):
    """As nginx: ETags and ranges; its own listing, or a file in its place."""

    ranges = True
    asked: list[str] = []  # noqa: RUF012

    def end_headers(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_file() and path.name != "listing.json":
            status = path.stat()
            self.send_header("ETag", f'"{status.st_mtime_ns}-{status.st_size}"')
        super().end_headers()

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        if not (self.ranges and wanted and path.is_file()):
            super().do_GET()
            return
        start, stop = map(int, wanted.removeprefix("bytes=").split("-"))
        content = path.read_bytes()
        type(self).asked.append(wanted)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop}/{len(content)}")
        self.send_header("Content-Length", str(stop + 1 - start))
        self.end_headers()
        self.wfile.write(content[start : stop + 1])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(params=["ranges", "plain"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server of a folder: one that knows ranges, and Python's own, which does not."""
    root = tmp_path / "served"
    for path, samples in FILES.items():
        write(root / path, list(samples))
    handler = Ranged if request.param == "ranges" else type("Plain", (Ranged,), {"ranges": False})
    Ranged.asked.clear()
    serving = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(root)))
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}", root
    serving.shutdown()
    thread.join()
    serving.server_close()
    assert bool(Ranged.asked) == (request.param == "ranges")


def test_a_name_of_an_http_listing_may_have_any_character(server: tuple[str, Path]) -> None:
    """Each file is asked for by its own address: one named ``%41`` is not the one named ``A``."""
    address, root = server
    (root / "odd").mkdir()
    names = ["A", "%41", "100%25", "a#b?", "a&b=c", "a+b;c", "t\u00ebst \u65e5", "x:y@z", "[1]*"]
    for number, name in enumerate(names):
        write(root / "odd" / f"{name}.jsonl", range(number, number + 1))
    assert sorted(lists(data.http(f"{address}/odd/"))) == list(range(len(names)))


def test_pages_of_links_are_read(server: tuple[str, Path]) -> None:
    assert sorted(both(functools.partial(data.http, f"{server[0]}/"))) == list(range(50))


@pytest.mark.parametrize("kind", ["json", "txt"])
def test_lists_of_paths_are_read(server: tuple[str, Path], kind: str) -> None:
    address, root = server
    paths = [quote(path) for path in FILES]
    listing = (
        "[" + ", ".join(f'"{each}"' for each in paths) + "]"
        if kind == "json"
        else "# paths\n" + "\n".join(paths)
    )
    (root / f"listing.{kind}").write_text(listing)
    assert sorted(both(functools.partial(data.http, f"{address}/listing.{kind}"))) == list(range(50))


def test_names_of_nginx_are_no_addresses(server: tuple[str, Path]) -> None:
    """Its JSON has them as they are; with a colon one was left out, and with another sign asked for as another."""
    address, root = server
    names = ["A", "%41", "a#b?", "web:1", "http:2", "t\u00ebst \u65e5"]
    for number, name in enumerate(names):
        write(root / "x:y" / f"{name}.jsonl", [number])
    (root / "x:y/listing.json").write_text(
        json.dumps([{"name": f"{each}.jsonl", "type": "file"} for each in names])
    )
    assert sorted(lists(data.http(f"{address}/x:y/listing.json"))) == list(range(len(names)))
    (root / "listing.json").write_text(json.dumps([{"name": "x:y", "type": "directory"}]))
    jsonl = data.http(
        f"{address}/listing.json", where=lambda file: file.path.endswith("jsonl"), format="jsonl"
    )
    assert sorted(lists(jsonl)) == list(range(len(names)))


def test_each_path_of_a_list_is_meant(server: tuple[str, Path]) -> None:
    """One beside its folder was left out without a word; one with a colon, too."""
    address, root = server
    for number, name in enumerate(("web:1", "b")):
        write(root / "odd" / f"{name}.jsonl", [number])
    (root / "odd/listing.txt").write_bytes(b"\xef\xbb\xbfweb:1.jsonl\r\nb.jsonl\r\n")
    assert sorted(lists(data.http(f"{address}/odd/listing.txt"))) == [0, 1]
    for path in ("../c.jsonl", "https://elsewhere.test/c.jsonl"):
        (root / "odd/listing.json").write_text(json.dumps(["b.jsonl", path]))
        with pytest.raises(
            SourceError, match=rf"listing\.json: it lists {path}, which is not below {address}/odd/$"
        ):
            lists(data.http(f"{address}/odd/listing.json"))


def test_a_folder_is_listed_also_without_the_slash_at_its_end(server: tuple[str, Path]) -> None:
    """Servers redirect there; its links were seen from the folder above, where those files are not."""
    address, root = server
    write(root / "odd/a.jsonl", [1])
    write(root / "odd/deep/b.jsonl", [2])
    write(root / "other/c.jsonl", [3])
    assert sorted(lists(data.http(f"{address}/odd"))) == [1, 2]


def test_a_served_file_that_changes_is_named(server: tuple[str, Path]) -> None:
    address, root = server
    dataset = data.Dataset(data.http(f"{address}/", where=lambda file: file.path.endswith("jsonl")), 5)
    assert len(next(dataset)) == 5
    dataset.close()
    state = dataset.state_dict()
    write(root / "dt=2026-11-24/hour=01/c.jsonl", list(range(60, 90)))
    again = data.Dataset(data.http(f"{address}/"), 5)
    again.load_state_dict(state)
    with pytest.raises(
        SourceError, match=r"hour=01/c\.jsonl is not the file that was listed: it has \d+ bytes and version"
    ):
        next(again)


def test_what_is_not_served_is_named(server: tuple[str, Path]) -> None:
    address, _ = server
    assert lists(data.http(f"{address}/dt=2026-11-24/hour=01/"))
    with pytest.raises(SourceError, match="/nowhere/: the server answers 404"):
        next(data.Dataset(data.http(f"{address}/nowhere/"), 1))


def test_a_server_that_is_away_is_named() -> None:
    with pytest.raises(UnavailableError, match="the server does not answer"):
        next(data.Dataset(data.http("http://127.0.0.1:9/"), 1))
    with pytest.raises(SettingsError, match="expected http://"):
        data.http("ftp://x/")


def test_headers_are_for_the_places_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect to another host does not take them along; one to TLS on the same host does."""
    asked: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((str(request.url), request.headers.get("x-key")))
        if request.url.scheme == "http":
            return httpx.Response(301, headers={"location": "https://data.test/list"})
        if request.url.host == "data.test":
            return httpx.Response(302, headers={"location": "https://elsewhere.test/list"})
        return httpx.Response(200, json=[])

    client = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(http_listing, "_client_of", lambda _pid: client)
    assert data.http("http://data.test/list", headers={"X-Key": "s3cret"}).listing() == []
    assert asked == [
        ("http://data.test/list", "s3cret"),
        ("https://data.test/list", "s3cret"),
        ("https://elsewhere.test/list", None),
    ]


def test_what_fails_on_one_rank_in_its_own_way_is_raised_on_all() -> None:
    """A torn archive raises what it likes: a rank that left by that would be waited for."""

    def read() -> None:
        raise EOFError("Compressed file ended")

    made, error = _tried(read)
    assert made is None
    assert isinstance(error, SourceError)
    assert "EOFError: Compressed file ended" in str(error)


def test_what_fsspec_reaches_is_read(tmp_path: Path) -> None:
    """Its memory file system stands for all others."""
    memory = fsspec.filesystem("memory")
    for path, samples in FILES.items():
        memory.pipe(f"/bucket/x/{path}", write(tmp_path / path, list(samples)).read_bytes())
    assert sorted(both(functools.partial(data.fsspec, "memory://bucket/x"))) == list(range(50))
    dataset = data.Dataset(
        data.fsspec("memory://bucket/x", where=lambda file: file.path.endswith("jsonl")), 5
    )
    dataset.prepare()
    memory.pipe("/bucket/x/dt=2026-11-24/hour=01/c.jsonl", b"{}\n" * 30)
    with pytest.raises(SourceError, match=r"c\.jsonl is not the file that was listed"):
        next(dataset)
    with pytest.raises(SourceError, match="memory://nowhere: there is nothing"):
        next(data.Dataset(data.fsspec("memory://nowhere"), 1))
    with pytest.raises(SettingsError, match="nosuch://x: Protocol not known"):
        next(data.Dataset(data.fsspec("nosuch://x"), 1))


def test_what_fsspec_listed_before_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may keep its listings until it is asked to drop them: a source is followed all the same."""
    memory = fsspec.filesystem("memory")
    content = write(tmp_path / "a.jsonl", [1]).read_bytes()
    memory.pipe("/followed/a.jsonl", content)
    kept: dict[str, Any] = {}
    find = type(memory).find
    monkeypatch.setattr(
        type(memory), "find", lambda self, path, **more: kept.setdefault(path, find(self, path, **more))
    )
    monkeypatch.setattr(type(memory), "invalidate_cache", lambda _self, _path=None: kept.clear())
    place = data.fsspec("memory://followed").place
    assert [each.path for each in place.files()] == ["a.jsonl"]
    memory.pipe("/followed/b.jsonl", content)
    assert sorted(each.path for each in place.files()) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "ExpiredToken", "refuses the credentials"),
        (403, "AccessDenied", "refuses the credentials"),
        (400, "InvalidRequest", "refuses the request"),
        (400, "RequestTimeout", ""),
        (408, "408", ""),
        (429, "429", ""),
        (503, "SlowDown", ""),
    ],
)
def test_what_s3_refuses_is_not_waited_for(
    status: int, code: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that has expired is answered with 400: it was asked with for ten minutes, in vain."""
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def fails(**_: Any) -> None:
        raise botocore.exceptions.ClientError(answer, "GetObject")

    client = types.SimpleNamespace(get_object=fails)
    monkeypatch.setattr(S3Place, "_client", lambda _self: client)
    with pytest.raises(
        SourceError if expected else UnavailableError, match=rf"s3://b/x/: S3 .*{code}"
    ) as seen:
        S3Place("s3://b/x/").open(data.File("a", 1, "v")).read()
    assert expected in str(seen.value)


class Flaky(MemoryFileSystem):
    """A file system whose questions fail now and then, also while a file is read, as those behind a network do."""

    protocol = "flaky"
    find = AbstractFileSystem.find
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fails: ClassVar[dict[str, Exception]] = {}
    """The error of the next question whose path has an end; of a read: ``read``."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("flaky:/"))

    @staticmethod
    def question(path: str) -> None:
        for end in list(Flaky.fails):
            if path.endswith(end):
                raise Flaky.fails.pop(end)

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        self.question(path)
        return super().ls(path, detail=detail, **more)

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, **more)
        content = super()._open(path, mode).getvalue()

        class Opened(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                Flaky.question("read")
                return super().read(size)

        return Opened(content)


class ClientError(Exception):
    """Of a library for the network: no OSError."""


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Flaky]:
    """One with ten samples in each of three folders."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    for name in ("store", "fails"):
        getattr(Flaky, name).clear()
    for number, kind in enumerate(("parquet", "arrow", "jsonl")):
        content = write(tmp_path / f"a.{kind}", list(range(10 * number, 10 * number + 10))).read_bytes()
        Flaky().pipe_file(f"/x/h{number}/a.{kind}", content)
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.001)
    return Flaky


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), TimeoutError("slow"), ClientError("503")])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_read_through_fsspec_that_breaks_off_is_repeated(
    flaky: type[Flaky], kind: str, error: Exception
) -> None:
    """Most file systems connect only when a file is read; a rank ended with what their clients raise."""
    source = data.fsspec("flaky://x", where=lambda file: file.path.endswith(kind))
    dataset = data.Dataset(source, 5, lanes=2, threads=1)
    dataset.prepare()
    flaky.fails["read"] = error
    assert len([sample for rows in dataset for sample in ids(rows)]) == 10
    assert not flaky.fails
    dataset.close()


@pytest.mark.parametrize("where", ["read", "a.jsonl"])
def test_credentials_that_fsspec_is_refused_are_not_waited_for(
    flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    source = data.fsspec("flaky://x/h2")
    dataset = data.Dataset(source, 5)
    dataset.prepare()
    if where == "a.jsonl":
        monkeypatch.setattr(flaky, "info", lambda _self, path, **_more: flaky.question(path))
    flaky.fails[where] = PermissionError("403")
    with pytest.raises(SourceError, match="flaky://x/h2: it may not be read: 403"):
        next(dataset)


def test_a_folder_that_fsspec_cannot_list_is_no_empty_one(flaky: type[Flaky]) -> None:
    """Its samples were left out without a word; one that was taken away meanwhile has none."""
    place = FsspecPlace("flaky://x")
    flaky.fails["h1"] = OSError("503")
    with pytest.raises(UnavailableError, match=r"flaky://x: OSError: 503"):
        list(place.files())
    flaky.fails["h1"] = PermissionError("403")
    with pytest.raises(SourceError, match="it may not be read"):
        list(place.files())
    assert len(list(place.files())) == 3
    flaky.fails["h1"] = FileNotFoundError("h1")
    assert [each.path for each in place.files()] == ["h2/a.jsonl", "h0/a.parquet"]


def test_an_archive_is_read_through_fsspec(tmp_path: Path) -> None:
    """Its file system closes it when nothing refers to that any more: each read failed."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(3):
            name = f"x/{number}.jsonl"
            archive.write(write(tmp_path / name, list(range(10 * number, 10 * number + 10))), name)
    assert sorted(lists(data.fsspec(f"zip://::{tmp_path}/a.zip"))) == list(range(30))
    assert sorted(lists(data.fsspec(f"zip://x::{tmp_path}/a.zip"))) == list(range(30))


def test_a_key_with_an_empty_part_counts(tmp_path: Path) -> None:
    """As ``x//a.jsonl``, which a prefix with a slash at its end makes: it was left out without a word."""
    memory = fsspec.filesystem("memory")
    for number, key in enumerate(("a.jsonl", "b//c.jsonl", "/d.jsonl", "_e//f.jsonl", "g//.h.jsonl")):
        memory.pipe(f"/keys/{key}", write(tmp_path / "a.jsonl", [number]).read_bytes())
    assert sorted(lists(data.fsspec("memory://keys"))) == [0, 1, 2]


@pytest.mark.usefixtures("aws")
def test_an_s3_key_is_what_is_written(store: S3Store, tmp_path: Path) -> None:
    """In an address ``#`` or ``?`` ended the prefix: another one was read."""
    keys = ("x#1/a.jsonl", "x/d.jsonl", "x#1/%41 \u00fc.jsonl", "x?y/e.jsonl")
    for number, key in enumerate(keys):
        store.put(key, write(tmp_path / "a.jsonl", [number]).read_bytes())
    source = functools.partial(data.s3, endpoint=store.endpoint)
    assert sorted(lists(source(f"s3://{store.bucket}/x#1/"))) == [0, 2]
    assert lists(source(f"s3://{store.bucket}/x?y")) == [3]
    assert lists(source(f"s3://{store.bucket}/x/")) == [1]


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_what_waits_for_a_thread_is_a_batch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of millions of files each would be waited for by itself; the order is theirs, and an error ends the rest."""
    waiting: list[int] = []
    pool_map = at_once.ThreadPoolExecutor.map

    def counted(pool: Any, work: Any, batches: Any) -> Any:
        waiting.append(len(batches))
        return pool_map(pool, work, batches)

    monkeypatch.setattr(at_once.ThreadPoolExecutor, "map", counted)
    assert list(at_once.each_of(str, range(count), 2)) == [str(each) for each in range(count)]
    assert waiting[0] <= 32
    with pytest.raises(ZeroDivisionError):
        list(at_once.each_of(lambda each: 1 // each, range(5), 2))


def elsewhere(address: str) -> FolderPlace:
    return FolderPlace(address.removeprefix("acme:/"))


def test_a_place_of_another_package_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the scheme of its addresses."""
    write(tmp_path / "a.txt", [1, 2, 3])
    point = EntryPoint("acme", f"{__name__}:elsewhere", places.GROUP)
    monkeypatch.setattr(places, "entry_points", lambda group: [point] if group == places.GROUP else [])
    assert sorted(lists(data.source(f"acme:/{tmp_path}"))) == [1, 2, 3]


@pytest.mark.usefixtures("aws")
def test_a_stream_goes_on_where_all_of_an_s3_prefix_was_taken_away(
    make_store: MakeStore, tmp_path: Path
) -> None:
    """A bucket has no folders: where old objects expire, a prefix without any is no wrong address later on."""
    store = make_store()
    store.ensure_bucket()
    content = write(tmp_path / "a.jsonl", [1, 2]).read_bytes()
    store.put("x/2026-11-24/00/a.jsonl", content)
    source = data.s3(f"s3://{store.bucket}/x/", endpoint=store.endpoint, follow=True)
    dataset = data.Dataset(source, 2)
    assert sorted(ids(next(dataset))) == [1, 2]
    store.delete("x/2026-11-24/00/a.jsonl")
    assert not dataset.grow()
    store.put("x/2026-11-24/01/b.jsonl", content)
    assert sorted(ids(next(dataset))) == [1, 2]
    dataset.close()


def test_a_stream_goes_on_where_fsspec_finds_nothing_any_more(tmp_path: Path) -> None:
    """The folder is still there; one that is gone itself, such as a share that is not mounted, is an error."""
    write(tmp_path / "below/a.jsonl", [1, 2])
    dataset = data.Dataset(data.fsspec(f"file://{tmp_path}/below", follow=True), 2)
    next(dataset)
    (tmp_path / "below/a.jsonl").unlink()
    assert not dataset.grow()
    (tmp_path / "below").rmdir()
    with pytest.raises(SourceError, match="there is nothing"):
        dataset.grow()
    dataset.close()
