"""A new site's Prefect database: the kept schema is what the installed Prefect's migrations make, or is not taken."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

from holdfast import private
from holdfast.deployments.local import prefect_database
from holdfast.deployments.local.prefect_database import SCHEMA, URL
from holdfast.deployments.worker.environment import socket_path
from holdfast.errors import SettingsError


def environment(path: Path) -> dict[str, str]:
    return {URL: f"sqlite+aiosqlite:///{path}"}


def statements(script: str) -> list[list[str]]:
    """Each statement's words, all sorted: the migrations write indexes and constraints in the order of a set."""
    return sorted(sorted(each.replace(",", " ").split()) for each in script.split(";\n"))


@pytest.mark.e2e
def test_the_kept_schema_is_what_migrations_end_with() -> None:
    """A new Prefect version needs `make prefect-schema`."""
    assert statements(SCHEMA.read_text()) == statements(prefect_database.migrated())


@pytest.mark.parametrize(
    "url", ["postgresql://u:hidden@db/prefect", "postgresql+psycopg://u@db/prefect", "sqlite:///x.db", "x"]
)
def test_a_url_of_another_module_is_refused(url: str) -> None:
    """With what to write, and without its password."""
    expected = r"HOLDFAST_PREFECT_DATABASE_URL = .*expected postgresql\+asyncpg://USER@HOST/DATABASE"
    with pytest.raises(SettingsError, match=expected) as refused:
        prefect_database.require_usable(url)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("url", ["", "postgresql+asyncpg://u@db/prefect", "sqlite+aiosqlite:////a/x.db"])
def test_a_url_of_prefects_modules_is_taken(url: str) -> None:
    prefect_database.require_usable(url)


def test_a_new_database_is_made_whole(tmp_path: Path) -> None:
    path = tmp_path / "prefect" / "prefect.db"
    assert prefect_database.prepare(environment(path))
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("select version_num from alembic_version").fetchall()
        assert not database.execute("select * from flow_run").fetchall()
    assert path.stat().st_mode & 0o077 == 0


def test_a_database_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "prefect.db"
    path.write_bytes(b"")  # as Prefect leaves it when it is killed at its first look
    assert not prefect_database.prepare(environment(path))
    assert path.read_bytes() == b""


@pytest.mark.parametrize("url", ["", "postgresql+asyncpg://db/prefect", "sqlite+aiosqlite:///:memory:"])
def test_databases_elsewhere_are_prefects_own_matter(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not prefect_database.prepare({URL: url})
    assert not list(tmp_path.iterdir())


def test_the_workers_socket_fits_however_deep_the_home_lies(tmp_path: Path) -> None:
    """The kernel takes 107 bytes."""
    for depth in (1, 40):
        home = tmp_path.joinpath(*["deep"] * depth)
        with socket.socket(socket.AF_UNIX) as listening:
            path = private.folder(socket_path(home).parent) / "worker.sock"
            listening.bind(str(path))
        assert path == socket_path(home)
        path.unlink()
    path.parent.rmdir()


def test_another_version_migrates(tmp_path: Path) -> None:
    kept = tmp_path / "schema.sql"
    kept.write_text(SCHEMA.read_text().replace(metadata.version("prefect"), "3.0.0", 1))
    assert not prefect_database.prepare(environment(tmp_path / "prefect.db"), kept)
    assert not (tmp_path / "prefect.db").exists()
