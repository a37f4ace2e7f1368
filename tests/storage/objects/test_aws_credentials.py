"""Credentials as the AWS SDKs find them: from a container's credentials server, as EKS and ECS have it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, ProfileNotFound

from holdfast.errors import SettingsError, UnavailableError
from holdfast.settings import Settings, read
from holdfast.storage import objects
from holdfast.storage.objects import failures, s3_client

ROLE = "/role"


class Cloud(ThreadingHTTPServer):
    """A credentials server, and an S3 that notes the keys with which requests are signed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.given = 0
        self.lasts_s = 3600.0
        self.fails = 0
        self.signed: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def credentials(self) -> dict[str, str]:
        self.given += 1
        ends = datetime.now(UTC) + timedelta(seconds=self.lasts_s)
        return {
            "AccessKeyId": f"ASIA{self.given}",
            "SecretAccessKey": "s",
            "Token": f"token-{self.given}",
            "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


class _Answers(BaseHTTPRequestHandler):
    server: Cloud

    def do_GET(self) -> None:
        if self.path != ROLE:
            self._answer(200, b"found")
        elif self.server.fails:
            self.server.fails -= 1
            self._answer(500, b"{}")
        else:
            self._answer(200, json.dumps(self.server.credentials()).encode())

    def _answer(self, status: int, body: bytes) -> None:
        if self.path != ROLE:
            key = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
            assert key is not None
            self.server.signed.append((key[1], self.headers.get("X-Amz-Security-Token", "")))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cloud]:
    """The cloud, of whose credentials this process knows."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with Cloud() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url + ROLE)
        s3_client._session.cache_clear()
        yield server
        server.shutdown()
    s3_client._session.cache_clear()


def _settings(home: Path, cloud: Cloud) -> Settings:
    return Settings(home=home, s3_endpoint=cloud.url, s3_bucket="b", s3_credentials="aws")


def test_requests_are_signed_by_the_role_and_nothing_is_handed_on(tmp_path: Path, cloud: Cloud) -> None:
    """No secret file is needed, and what ranks are given holds no key."""
    settings = _settings(tmp_path, cloud)
    store = objects.from_settings(settings)
    assert bytes(store.get("k")) == b"found"
    assert cloud.signed == [("ASIA1", "token-1")]
    assert not {"access_key", "secret_key"} & objects.arguments(settings).keys()


def test_credentials_are_renewed_before_they_end(tmp_path: Path, cloud: Cloud) -> None:
    """Botocore renews what ends within ten minutes."""
    cloud.lasts_s = 60.0
    store = objects.from_settings(_settings(tmp_path, cloud))
    store.get("k")
    store.get("k")
    assert len({key for key, _ in cloud.signed}) == 2


def test_what_was_not_there_at_first_is_found_later(
    tmp_path: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was made without credentials never looks for them again."""
    store = objects.from_settings(_settings(tmp_path, cloud))
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    with pytest.raises(UnavailableError, match="HOLDFAST_S3_CREDENTIALS=aws"):
        store.get("k")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", cloud.url + ROLE)
    s3_client._session.cache_clear()  # its search was set up by the environment
    assert bytes(store.get("k")) == b"found"


def test_a_credentials_server_that_stumbles_is_asked_again(tmp_path: Path, cloud: Cloud) -> None:
    cloud.fails = 1
    store = objects.from_settings(_settings(tmp_path, cloud))
    assert bytes(store.get("k")) == b"found"


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"^settings: HOLDFAST_S3_CREDENTIALS=aws needs HOLDFAST_S3_ENDPOINT"
    ):
        read(Settings, tmp_path, home=tmp_path, s3_credentials="aws")
    keys = {"s3_secret_key": "hush", "s3_endpoint": "http://s3"}
    with pytest.raises(SettingsError, match="unset the keys") as refused:
        read(Settings, tmp_path, home=tmp_path, s3_credentials="aws", **keys)
    assert "hush" not in str(refused.value)


def test_what_is_wrong_with_a_role_is_named() -> None:
    refused = ClientError(
        {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}},  # type: ignore[typeddict-item]
        "AssumeRoleWithWebIdentity",
    )
    assert "whom it trusts" in str(failures.explain(refused, "http://s3", "b", "k"))
    assert "'gone'" not in str(failures.explain(ProfileNotFound(profile="gone"), "http://s3", "b", "k"))
    assert "(gone)" in str(failures.explain(ProfileNotFound(profile="gone"), "http://s3", "b", "k"))
