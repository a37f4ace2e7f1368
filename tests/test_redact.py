"""Passwords of URLs are in no message, log line, page or answer."""

from __future__ import annotations

import io
import logging
import time
from pathlib import Path

import pytest

from holdfast import redact, settings
from holdfast.agent.inspection.object_store import ObjectStoreAnswers
from holdfast.cli import checks
from holdfast.client import links
from holdfast.errors import SettingsError, UnavailableError
from holdfast.plugins.policy import site_policy
from holdfast.settings import Settings
from holdfast.shown import PlainFormatter
from holdfast.storage.ledger import Ledger

PASSWORD = "s3cr:et"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:pw@db:5432/x", "postgresql://u:***@db:5432/x"),
        ("postgresql+psycopg://u:p@w@db/x", "postgresql+psycopg://u:***@db/x"),
        ("postgresql://u:p/w@db/x", "postgresql://u:***@db/x"),
        ("http://:pw@host", "http://:***@host"),
        ("two: http://a:b@h1,https://c:d@h2 and more", "two: http://a:***@h1,https://c:***@h2 and more"),
        ("for url 'http://a:b@h/api'.", "for url 'http://a:***@h/api'."),
        ("postgresql://h/x?user=u&password=pw&sslmode=on", "postgresql://h/x?user=u&password=***&sslmode=on"),
        ("https://h/key?X-Amz-Signature=1&token=t", "https://h/key?X-Amz-Signature=1&token=***"),
        ("http://host:4200/api?mail=a@b", "http://host:4200/api?mail=a@b"),
        ("http://[::1]:4200/a@b", "http://[::1]:4200/a@b"),
        ("http://host:4200, ask me@there", "http://host:4200, ask me@there"),
        ("s3://bucket/key@1 user:pw@host", "s3://bucket/key@1 user:pw@host"),
        ("sqlite:////home/x/ledger.db", "sqlite:////home/x/ledger.db"),
    ],
)
def test_only_the_password_is_hidden(text: str, shown: str) -> None:
    """Host, port, user and path are what a person looks for."""
    assert redact.passwords(text) == shown
    assert redact.passwords(shown) == shown


def test_a_link_has_no_credentials() -> None:
    """A browser would send them along, or show them."""
    assert redact.link("https://u:pw@prefect:4200/api/a@b") == "https://prefect:4200/api/a@b"
    assert redact.link("http://127.0.0.1:4200") == "http://127.0.0.1:4200"


def test_long_text_takes_no_time() -> None:
    """Messages carry logs and tracebacks; quadratic time would be minutes."""
    begun = time.process_time()
    redact.passwords("://a:" * 40_000 + "a.b:" * 40_000)
    assert time.process_time() - begun < 5.0


def test_errors_show_no_password() -> None:
    """Also those that carry a library's words."""
    error = UnavailableError(
        "Prefect API at http://u:pw@prefect:4200/api: for url 'http://u:pw@prefect:4200'"
    )
    assert "pw" not in str(error)
    assert "http://u:***@prefect:4200/api" in str(error)


def test_log_files_show_no_password() -> None:
    """HTTP libraries log each URL that they ask."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter("%(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.info("HTTP Request: GET %s", "http://u:pw@prefect:4200/api/health")
    assert stream.getvalue() == "HTTP Request: GET http://u:***@prefect:4200/api/health\n"


def test_settings_that_are_wrong_show_no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The value is named, as of every setting."""
    monkeypatch.setenv("HOLDFAST_PREFECT_API_URL", "ftp://u:pw@prefect/api")
    with pytest.raises(SettingsError, match="PREFECT_API_URL") as caught:
        settings.load(tmp_path)
    assert "pw" not in str(caught.value)


def test_a_ledger_that_is_away_shows_no_password() -> None:
    """Whichever way the URL carries it."""
    ledger = Ledger("postgresql+psycopg://u:pw@127.0.0.1:1/x?password=pw2")
    assert ledger._where == "postgresql+psycopg://u:***@127.0.0.1:1/x?password=***"


def test_what_is_shown_of_services_has_no_password() -> None:
    """Doctor, the line that names Prefect's page, and the alert of an object store that does not answer."""
    known = Settings(prefect_api_url="http://u:pw@127.0.0.1:1/api", s3_endpoint="http://u:pw@127.0.0.1:1")
    lines = [each.model_dump_json() for each in checks.services(known)]
    (sign,) = ObjectStoreAnswers(known.s3, site_policy(None).detect.storage).look()
    lines += [links.prefect_ui(known), sign.model_dump_json()]
    assert not [line for line in lines if "pw" in line]
    assert "http://127.0.0.1:1" in links.prefect_ui(known)
