import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from holdfast.errors import SettingsError, UnavailableError
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.connection import write_ahead
from tests.e2e.waiting import free_ports
from tests.storage.ledger.samples import register, running_job


def test_a_ledger_survives_being_closed(tmp_path: Path) -> None:
    """Its folder is made with it; made again, it keeps what it has."""
    url = f"sqlite:///{tmp_path}/new/folder/ledger.db"
    first = Ledger(url)
    first.create()
    running_job(first)
    first.close()
    second = Ledger(url)
    second.create()
    assert [job.name for job in second.jobs()] == ["gpt"]
    second.close()


def test_a_new_file_that_another_reads_is_waited_for(tmp_path: Path) -> None:
    """As when two processes make the same ledger at once: SQLite answers one of them "locked" at once."""
    other, ours = (sqlite3.connect(tmp_path / "ledger.db", isolation_level=None) for _ in range(2))
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN")
    other.execute("SELECT * FROM t").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        ours.execute("PRAGMA busy_timeout=0").connection.execute("PRAGMA journal_mode=WAL")
    tried: list[str] = []

    def let_go_at_the_second_try(statement: str) -> None:
        tried.append(statement)
        if len(tried) == 2:
            other.execute("COMMIT")

    ours.set_trace_callback(let_go_at_the_second_try)
    write_ahead(ours)
    assert len(tried) >= 2
    assert ours.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()
    ours.close()


@pytest.mark.parametrize("url", ["ledger.db", "nosuch://x", ""])
def test_a_wrong_url_is_named(url: str) -> None:
    """With what was expected."""
    with pytest.raises(SettingsError, match="Expected sqlite:///PATH or postgresql"):
        Ledger(url)


@pytest.mark.skipif(find_spec("psycopg2") is not None, reason="psycopg2 is installed")
def test_a_url_without_a_driver_is_refused_with_the_one_to_write() -> None:
    """SQLAlchemy takes psycopg2 then, which nothing of ours installs."""
    with pytest.raises(SettingsError, match=r"Write postgresql\+psycopg://"):
        Ledger("postgresql://me@host/x")


def test_a_wrong_url_is_named_without_its_password() -> None:
    """It ends up in logs."""
    with pytest.raises(SettingsError) as caught:
        Ledger("nosuch://me:hunter2@host/x")
    assert "hunter2" not in str(caught.value)
    assert "me:***@host" in str(caught.value)


def test_a_ledger_without_tables_says_what_to_do(tmp_path: Path) -> None:
    """Rather than showing SQL."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(UnavailableError, match=r"no such table: jobs\. Check .*holdfast up"):
        ledger.jobs()
    ledger.close()


def test_a_database_that_is_away_is_unavailable() -> None:
    """And its password stays out of the message."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    ledger = Ledger(f"postgresql+psycopg://me:hidden@127.0.0.1:{free_ports(1)}/x")
    with pytest.raises(UnavailableError, match="does not answer") as caught:
        ledger.jobs()
    assert "hidden" not in str(caught.value)


def test_a_full_disk_is_reported_as_one(tmp_path: Path) -> None:
    """The tables are there, and what to do is to make room; afterwards it goes on by itself."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create()
    most = 2**30

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {most}")

    event.listen(Engine, "checkout", limit)
    try:
        most = 1  # no more than it has
        with pytest.raises(UnavailableError, match=r"disk is full\. Make room on its disk"):
            [register(ledger, f"m{number}") for number in range(1000)]
        most = 2**30
        register(ledger, "late")
    finally:
        event.remove(Engine, "checkout", limit)
    assert ledger.machine("late")
    ledger.close()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """A damaged ledger is named."""
    (tmp_path / "ledger.db").write_bytes(b"not a database, but long enough to be read as one" * 99)
    with pytest.raises(UnavailableError, match=r"ledger\.db does not answer: file is not a database"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db").create()
