"""A store that fails: bounded in time, retried only where that can help."""

from __future__ import annotations

import base64
import hashlib
import io
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
    SSLError,
)
from pydantic import SecretStr

from holdfast import secret
from holdfast.errors import SettingsError, UnavailableError, UnknownError
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.objects import deadline, failures, patience, s3
from holdfast.storage.objects.s3 import S3Store
from holdfast.storage.objects.s3_requests import READ_TIMEOUT_S
from tests.retries import by_hand
from tests.storage.objects.stubs import Cached, Deletes, Elsewhere, Page, Torn, scripted, served, silent


def _store(endpoint: str, attempts: int = 3, timeout_s: float = 60.0) -> S3Store:
    return S3Store(
        endpoint=endpoint,
        bucket="b",
        access_key="a",
        secret_key="s",
        connect_timeout_s=timeout_s,
        read_timeout_s=timeout_s,
        attempts=attempts,
    )


@pytest.mark.parametrize("status", [500, 503, 429])
def test_server_errors_are_retried(status: int) -> None:
    """Two of them, and then the answer."""
    with scripted(status, status, 200) as server:
        assert _store(server.endpoint).get("k") == b"bytes"
        assert server.requests == 3


@pytest.mark.parametrize("status", [500, 503])
def test_server_errors_with_a_checksum_are_retried(status: int) -> None:
    """A server may name the checksum of what it could not read, and botocore alone stumbles over that."""
    with scripted(status, 200) as server:
        server.in_errors = {"x-amz-checksum-crc32": "AAAAAA=="}
        assert _store(server.endpoint).get("k") == b"bytes"
        assert server.requests == 2


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="https://s3"),
        ConnectTimeoutError(endpoint_url="https://s3"),
        ProxyConnectionError(proxy_url="http://proxy"),
    ],
)
def test_connection_that_did_not_come_about_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A balancer that is restarted refuses one of them: not worth an upload of many parts."""
    with scripted(200) as server:
        store = _store(server.endpoint)
        real, refused = store._client().get_object, [error]

        def get_object(**asked: Any) -> Any:
            if refused:
                raise refused.pop()
            return real(**asked)

        monkeypatch.setattr(store._client(), "get_object", get_object)
        assert store.get("k") == b"bytes"
        assert server.requests == 1


def test_certificate_that_is_not_trusted_is_not_tried_again() -> None:
    """It stays as it is."""
    assert not failures.is_transient(SSLError(endpoint_url="https://s3", error="CERTIFICATE_VERIFY_FAILED"))


def test_several_objects_are_deleted_with_the_digest_that_older_stores_ask_for() -> None:
    """MinIO, ECS and others answer `MissingContentMD5` to boto3's own checksum."""
    with served(Deletes()) as server:
        _store(server.endpoint).delete_many(["a", "b"])
        ((digest, body),) = server.at_once
    assert base64.b64decode(digest) == hashlib.md5(body).digest()


@pytest.mark.parametrize(
    "refusal", [(501, "NotImplemented"), (400, "NotImplemented"), (405, "MethodNotAllowed")]
)
def test_store_that_deletes_one_by_one_is_asked_so(refusal: tuple[int, str]) -> None:
    """And not for several again: what was to go would stay for ever."""
    with served(Deletes(refusal)) as server:
        store = _store(server.endpoint)
        store.delete_many(["a", "b"])
        store.delete_many(["c"])
        assert server.deleted == ["a", "b", "c"]
        assert len(server.at_once) == 1


class Throttled:
    """Refuses ``times`` requests as S3 does when there are too many, then does ``real``."""

    def __init__(self, real: Callable[..., Any], times: int) -> None:
        self.real, self.left, self.asked = real, times, 0

    def __call__(self, **asked: Any) -> Any:
        self.asked += 1
        if not self.left:
            return self.real(**asked)
        self.left -= 1
        answer: Any = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
        raise ClientError(answer, "PutObject")


def test_upload_waits_while_the_store_asks_to_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks upload at once: of ten thousand one would fail three times, and the checkpoint lack its part."""
    by_hand(monkeypatch)
    store = _store("http://127.0.0.1:1")
    put = Throttled(lambda **_: {}, times=12)
    monkeypatch.setattr(store._client(), "put_object", put)
    store.put_view("k", memoryview(b"bytes"), within_s=600)
    assert put.asked == 13


def test_upload_that_is_asked_to_slow_down_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its deadline."""
    monkeypatch.setattr(deadline, "time", by_hand(monkeypatch))
    store = _store("http://127.0.0.1:1")
    monkeypatch.setattr(store._client(), "put_object", Throttled(lambda **_: {}, times=10_000))
    with pytest.raises(UnavailableError, match=r"within 60 s|SlowDown"):
        store.put_view("k", memoryview(b"bytes"), within_s=60)


def test_untrusted_certificate_is_named() -> None:
    """With the variable that names a CA, not as a server that is away."""
    message = str(
        failures.explain(SSLError(endpoint_url="https://s3", error="self-signed"), "https://s3", "b", "k")
    )
    assert "AWS_CA_BUNDLE" in message
    assert "does not answer" not in message


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.put("k", b"bytes"),
        lambda store: store.put_view("k", memoryview(b"bytes"), within_s=60.0),
        lambda store: store.put_view("k", memoryview(bytes(17 << 20)), within_s=60.0),
        lambda store: store.put_stream("k", io.BytesIO(bytes(17 << 20))),
        lambda store: store.head("k"),
        lambda store: store.exists("k"),
        lambda store: list(store.list("")),
        lambda store: store.folders(""),
    ],
)
def test_a_page_in_place_of_the_store_is_no_answer(ask: Callable[[S3Store], object]) -> None:
    """A proxy that wants a login: a put stored nothing, and an empty list is no evidence."""
    with (
        served(Page()) as server,
        pytest.raises(UnavailableError, match="is no S3"),
    ):
        ask(_store(server.endpoint, attempts=1))


def test_retries_are_bounded() -> None:
    """A server that fails for ever is unavailable."""
    with scripted(503) as server:
        with pytest.raises(UnavailableError, match="failed on b/k"):
            _store(server.endpoint).get("k")
        assert server.requests == 3


def test_a_broken_read_goes_on_where_it_broke() -> None:
    """Every byte once, in whole chunks; only the chunk that was cut is asked for again."""
    content, taken = bytes(range(250)), list[bytes]()
    with served(Torn(content, cuts=[70, 0])) as server:
        _store(server.endpoint).read_range("k", 10, 200, 32, taken.append)
        assert server.ranges == [(10, 210), (74, 210), (74, 210)]
    assert b"".join(taken) == content[10:210]
    assert [len(chunk) for chunk in taken] == [32] * 6 + [8]


def test_a_read_that_always_breaks_is_given_up() -> None:
    """Damaged on its way, not a checkpoint that is damaged."""
    with served(Torn(bytes(100), cuts=[40] * 9)) as server:
        with pytest.raises(UnavailableError, match="arrived damaged"):
            _store(server.endpoint).read_range("k", 0, 100, 64, lambda _: None)
        assert len(server.ranges) == 3


def test_a_long_read_may_break_as_often_as_it_gets_on() -> None:
    """Of a file of gigabytes each connection may break: only one that brings nothing counts."""
    content, taken = bytes(range(200)), list[bytes]()
    with served(Torn(content, cuts=[25] * 9)) as server:
        _store(server.endpoint).read_range("k", 0, 200, 20, taken.append)
        assert len(server.ranges) == 10
    assert b"".join(taken) == content


def test_reads_wait_while_the_store_asks_to_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks restore at once: they are served one after the other; without an end they are given up."""
    monkeypatch.setattr(patience, "time", by_hand(monkeypatch))
    with scripted(200) as server:
        store = _store(server.endpoint)
        get = Throttled(store._client().get_object, times=8)
        monkeypatch.setattr(store._client(), "get_object", get)
        assert store.get("k") == b"bytes"
        assert get.asked == 9
        get.left = 10_000
        with pytest.raises(UnavailableError, match="SlowDown"):
            store.get("k")


def test_a_refusal_is_not_retried() -> None:
    """It would be refused again."""
    with scripted(403) as server:
        with pytest.raises(UnavailableError, match="refuses our credentials"):
            _store(server.endpoint).get("k")
        assert server.requests == 1


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "RequestExpired"])
def test_clocks_that_are_apart_are_named(code: str) -> None:
    """Not the keys, which are right: the answer has the same status as that to wrong ones."""
    error = ClientError({"Error": {"Code": code}}, "PutObject")
    message = str(failures.explain(error, "http://s3", "b", "k"))
    assert "clock" in message
    assert "SECRET_KEY" not in message


@pytest.mark.parametrize(("off_s", "named"), [(0.0, "SECRET_KEY"), (-1200.0, "clock"), (1200.0, "clock")])
def test_an_answer_to_head_names_the_clock_by_the_store_s_time(off_s: float, named: str) -> None:
    """It has no body, and so no code: wrong keys look the same but for the time."""
    headers = {"date": formatdate(time.time() + off_s, usegmt=True)}
    answer: Any = {
        "Error": {"Code": "403"},
        "ResponseMetadata": {"HTTPStatusCode": 403, "HTTPHeaders": headers},
    }
    assert named in str(failures.explain(ClientError(answer, "HeadObject"), "http://s3", "b", "k"))


def test_temporary_keys_have_a_session_token(tmp_path: Path) -> None:
    """It signs with the keys; one that has ended is named."""
    settings = Settings(
        home=tmp_path,
        s3_endpoint="http://host:1",
        s3_secret_key=SecretStr("s"),
        s3_session_token=SecretStr("t"),
    )
    store = objects.from_settings(settings)
    assert isinstance(store, S3Store)
    assert store._keys[2] == "t"
    ended = ClientError({"Error": {"Code": "ExpiredToken"}}, "PutObject")
    assert "HOLDFAST_S3_SESSION_TOKEN" in str(failures.explain(ended, "http://s3", "b", "k"))


@pytest.mark.parametrize(
    ("addressing", "shown"),
    [("path", "https://s3.example/bucket/k?"), ("virtual", "https://bucket.s3.example/k?")],
)
def test_bucket_is_named_as_the_store_knows_it(tmp_path: Path, addressing: Any, shown: str) -> None:
    """In the path, or in the host's name, which clouds such as Alibaba's and CoreWeave's know alone."""
    settings = Settings(
        home=tmp_path,
        s3_endpoint="https://s3.example",
        s3_bucket="bucket",
        s3_secret_key=SecretStr("s"),
        s3_addressing=addressing,
    )
    store = objects.from_settings(settings)
    assert isinstance(store, S3Store)
    asked = store._client().generate_presigned_url("get_object", Params={"Bucket": store.bucket, "Key": "k"})
    assert asked.startswith(shown)


def test_an_unreachable_endpoint_is_named(tmp_path: Path) -> None:
    """By every method, with the setting to check, within seconds."""
    with socket.socket() as held:  # so that no other process listens there meanwhile
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        store = _store(endpoint)
        asks: list[Callable[[], object]] = [
            lambda: store.put("k", b"x"),
            lambda: store.put_stream("k", io.BytesIO(b"x")),
            lambda: store.get("k"),
            lambda: store.fetch("k", tmp_path / "k"),
            lambda: store.exists("k"),
            lambda: list(store.list("")),
            lambda: store.delete("k"),
            store.ensure_bucket,
        ]
        for ask in asks:
            begun = time.monotonic()
            with pytest.raises(UnavailableError, match=rf"{endpoint} does not answer.*HOLDFAST_S3_ENDPOINT"):
                ask()
            assert time.monotonic() - begun < READ_TIMEOUT_S


def test_a_server_that_never_answers_is_given_up() -> None:
    """After the read timeouts of all attempts."""
    with silent() as endpoint:
        begun = time.monotonic()
        with pytest.raises(UnavailableError, match="does not answer"):
            _store(endpoint, attempts=2, timeout_s=0.2).get("k")
        assert time.monotonic() - begun < READ_TIMEOUT_S


def test_the_settings_name_the_store(tmp_path: Path) -> None:
    """Without a secret key of its own it is the project's secret."""
    settings = Settings(home=tmp_path, s3_endpoint="http://host:1/", s3_bucket="mine")
    with pytest.raises(SettingsError, match="secret file"):
        objects.from_settings(settings)
    secret.create(settings.secret_path)
    store = objects.from_settings(settings)
    assert isinstance(store, S3Store)
    assert (store.endpoint, store.bucket) == ("http://host:1", "mine")


ASKS: list[Callable[[S3Store], object]] = [
    lambda store: store.get("k"),
    lambda store: store.exists("k"),
    lambda store: store.put("k", b"x"),
    lambda store: store.put_stream("k", io.BytesIO(b"x")),
    lambda store: list(store.list("")),
]


@pytest.mark.parametrize("ask", ASKS, ids=["get", "exists", "put", "put_stream", "list"])
@pytest.mark.parametrize("status", [301, 307])
def test_a_bucket_of_another_region_is_named(status: int, ask: Callable[[S3Store], object]) -> None:
    """With the settings that are wrong; in one request."""
    server = Elsewhere(status, {"x-amz-bucket-region": "eu-west-1"}, "s3.eu-west-1.amazonaws.com")
    with served(server):
        with pytest.raises(
            UnavailableError, match=r"does not serve bucket 'b'.*region eu-west-1.*HOLDFAST_S3_ENDPOINT"
        ) as raised:
            ask(_store(server.endpoint))
        assert "HOLDFAST_S3_REGION=eu-west-1" in str(raised.value)
        assert server.requests == 1


@pytest.mark.parametrize("ask", ASKS, ids=["get", "exists", "put", "put_stream", "list"])
@pytest.mark.parametrize("status", [301, 302, 308])
def test_a_redirect_is_not_followed_and_named(status: int, ask: Callable[[S3Store], object]) -> None:
    """To https, or to a page for people: boto3 asks for the bucket's region and is redirected, without end."""
    with served(Elsewhere(status, {"Location": "https://there/"})) as server:
        with pytest.raises(
            UnavailableError, match=r"sends requests for bucket 'b' elsewhere.*HOLDFAST_S3_ENDPOINT"
        ):
            ask(_store(server.endpoint))
        assert server.requests == 1


@pytest.mark.parametrize("misses", [1, 3])
def test_an_object_that_is_listed_and_missed_is_asked_for_again(
    misses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache before the store keeps the 404 of a time before the upload."""
    monkeypatch.setattr(s3, "MISSED_AGAIN_S", 0.01)
    reads: list[Callable[[S3Store], object]] = [
        lambda store: store.get("k"),
        lambda store: store.get_range("k", 0, 5),
        lambda store: store.fetch("k", tmp_path / "k"),
        lambda store: store.head("k").nbytes,
    ]
    for read in reads:
        with served(Cached(misses)) as server:
            assert read(_store(server.endpoint)) in {b"bytes", 5}


def test_an_object_that_is_not_listed_is_gone_at_once() -> None:
    """No time is lost with what was deleted."""
    with served(Cached(1, lists=False)) as server:
        began = time.monotonic()
        with pytest.raises(UnknownError, match="no object 'k'"):
            _store(server.endpoint).get("k")
        assert time.monotonic() - began < s3.MISSED_S / 2


def test_an_object_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list may be of an earlier time, too."""
    monkeypatch.setattr(s3, "MISSED_S", 0.05)
    monkeypatch.setattr(s3, "MISSED_AGAIN_S", 0.01)
    with served(Cached(1000)) as server, pytest.raises(UnknownError, match="no object 'k'"):
        _store(server.endpoint).get("k")
