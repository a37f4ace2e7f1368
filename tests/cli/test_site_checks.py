"""``holdfast doctor`` on broken sites: each fault is injected, found, and shown with its remedy."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from email.utils import formatdate
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from holdfast.cli import site_checks
from holdfast.errors import UnavailableError
from holdfast.settings import Settings

NOW = 1_800_000_000.0


class Bucket:
    """A bucket in which one right may be missing."""

    def __init__(self, missing: str = "") -> None:
        self.missing, self.kept = missing, {"doctor/other": b""}

    def _may(self, right: str) -> None:
        if right == self.missing:
            raise UnavailableError(f"AccessDenied: s3:{right}")

    def put(self, key: str, body: bytes) -> None:
        self._may("write")
        self.kept[key] = body

    def get(self, key: str) -> bytes:
        self._may("read")
        return self.kept[key]

    def list(self, prefix: str) -> list[SimpleNamespace]:
        self._may("list")
        return [SimpleNamespace(key=key) for key in self.kept if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        self._may("delete")
        del self.kept[key]


class Library:
    """NVML as it answers on some machine."""

    def __init__(self, gpus: int = 0, error: str = "") -> None:
        self.gpus, self.error = gpus, error

    def nvmlInit(self) -> None:  # noqa: N802  (the library's own name)
        if self.error:
            raise OSError(self.error)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.gpus


@pytest.fixture
def gateway() -> Iterator[Settings]:
    """Something that answers on the gateway's port with a date."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(NOW, usegmt=True)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield Settings(gateway_url=url, s3_endpoint=url)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("right", ["write", "read", "list", "delete"])
def test_a_missing_right_in_the_bucket_is_named(right: str) -> None:
    """And what to allow."""
    check = site_checks.store_rights(Settings(), lambda _: Bucket(right))  # type: ignore[arg-type,return-value]
    assert not check.ok
    assert check.found == f"cannot {right}: AccessDenied: s3:{right}"
    assert "s3:PutObject" in check.advice


def test_a_bucket_with_all_rights_is_left_as_it_was() -> None:
    """Nothing of the check stays there."""
    bucket = Bucket()
    check = site_checks.store_rights(Settings(), lambda _: bucket)  # type: ignore[arg-type,return-value]
    assert check.ok
    assert list(bucket.kept) == ["doctor/other"]


@pytest.mark.parametrize(("ahead_s", "ok"), [(0, True), (60, False), (-60, False)])
def test_a_clock_that_is_off_is_wrong(
    gateway: Settings, ahead_s: float, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the gateway's, which stands still here: the host may be long with the answer."""
    ask = httpx.get
    monkeypatch.setattr(httpx, "get", lambda url, **how: ask(url, **(how | {"timeout": 60.0})))
    check = site_checks.clock(gateway, lambda: NOW + ahead_s)
    assert check.ok is ok
    assert ok or "timedatectl set-ntp true" in check.advice
    assert ok or ("ahead of" if ahead_s > 0 else "behind") in check.found


def test_wrong_versions_are_shown_with_the_command_that_fixes_them() -> None:
    """Prefect and what it breaks with."""
    versions = {"prefect": "3.9.1", "fastapi": "0.150.0", "sqlalchemy": "2.1.0"}
    needed = ["prefect<3.9,>=3.8.8; extra == 'control'", "fastapi<0.151; extra == 'control'"]
    found = site_checks.prefect(versions.__getitem__, lambda _: [*needed, "sqlalchemy<2.1", "numpy>=1"])
    assert {check.name: check.ok for check in found} == {
        "prefect version": False,
        "fastapi version": True,
        "sqlalchemy version": False,
    }
    assert found[0].advice == "pip install 'prefect<3.9,>=3.8.8'"


def test_the_installed_versions_are_right() -> None:
    """The requirements are those of this package; a machine without Prefect runs agents."""
    assert [check.ok for check in site_checks.prefect()] == [True, True, True]

    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    assert all(check.ok for check in site_checks.prefect(missing))


def test_nvml_must_work_where_a_driver_is(tmp_path: Path) -> None:
    """No driver, no GPUs: that is a machine without any."""
    driver = tmp_path / "version"
    assert site_checks.nvml(driver, Library(error="not found")).ok
    driver.touch()
    broken = site_checks.nvml(driver, Library(error="Driver/library version mismatch"))
    assert (broken.ok, broken.found) == (False, "Driver/library version mismatch")
    assert "reboot" in broken.advice
    assert not site_checks.nvml(driver, Library(gpus=0)).ok
    assert site_checks.nvml(driver, Library(gpus=8)).found == "8 GPUs"


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the package to fix."""
    info = tmp_path / "acme_holdfast-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-holdfast\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[holdfast.detectors]\nfans = acme_fans:Fans\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (check,) = [check for check in site_checks.plug_ins() if not check.ok]
    assert "'fans' of package acme-holdfast 1: ModuleNotFoundError" in check.found
