"""Tests of one process share only what is the same for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import plugins
from holdfast.plugins import EntryPoints
from holdfast.storage.ledger import Ledger
from tests.conftest import unit_of_work


def test_statements_are_compiled_for_one_ledger_and_run_on_another(tmp_path: Path) -> None:
    ledgers = [Ledger(f"sqlite:///{tmp_path / name}.db") for name in ("one", "other")]
    for ledger in ledgers:
        ledger.create()
    one, other = ledgers
    one.set_pool(3, "a reason")
    assert one.pool().target == 3
    compiled = len(one._engine._compiled_cache or ())
    assert other.pool().target == 0
    assert other._engine._compiled_cache is one._engine._compiled_cache
    assert len(other._engine._compiled_cache or ()) == compiled
    for ledger in ledgers:
        ledger.close()


def test_a_package_that_is_installed_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's time of change shows it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {found.plugin.name for found in plugins.installed(EntryPoints.DETECTORS)}
    info = tmp_path / "fans-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fans\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.detectors]\nfans = fans:Fans\n")
    assert {found.plugin.name for found in plugins.installed(EntryPoints.DETECTORS)} == before | {"fans"}


def test_tests_that_share_a_site_are_one_unit_of_work() -> None:
    assert unit_of_work("tests/e2e/test_data.py::test_x[a]") == "tests/e2e"
    assert unit_of_work("tests/page/test_views.py::test_x") == "tests/page/test_views.py"
