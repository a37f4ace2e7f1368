"""The package, installed once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import plugins
from tests.plugins import acme


@pytest.fixture(scope="session")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = acme.write(tmp_path_factory.mktemp("acme-source"), acme.FILES)
    target = tmp_path_factory.mktemp("acme-site")
    acme.install(source, target)
    return target


def _forget() -> None:
    plugins.declare.cache_clear()
    plugins.all_settings.cache_clear()


@pytest.fixture
def installed(site_packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package can be imported in this process, for one test."""
    monkeypatch.syspath_prepend(str(site_packages))
    _forget()
    yield site_packages
    _forget()
    for name in [name for name in sys.modules if name.startswith("acme_holdfast")]:
        del sys.modules[name]
