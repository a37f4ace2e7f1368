from pathlib import Path

import pytest

from holdfast.errors import SettingsError, UnavailableError
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.schema import MetaRow
from tests.storage.ledger.samples import running_job
from tests.storage.servers import free_port


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


@pytest.mark.parametrize("url", ["ledger.db", "nosuch://x", ""])
def test_a_wrong_url_is_named(url: str) -> None:
    """With what was expected."""
    with pytest.raises(SettingsError, match="Expected sqlite:///PATH or postgresql"):
        Ledger(url)


def test_a_ledger_without_tables_says_what_to_do(tmp_path: Path) -> None:
    """Rather than showing SQL."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(UnavailableError, match=r"no such table: jobs\. Check .*holdfast up"):
        ledger.jobs()
    ledger.close()


def test_a_database_that_is_away_is_unavailable() -> None:
    """And its password stays out of the message."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    ledger = Ledger(f"postgresql+psycopg://me:hidden@127.0.0.1:{free_port()}/x")
    with pytest.raises(UnavailableError, match="does not answer") as caught:
        ledger.jobs()
    assert "hidden" not in str(caught.value)


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """A damaged ledger is named."""
    (tmp_path / "ledger.db").write_bytes(b"not a database, but long enough to be read as one" * 99)
    with pytest.raises(UnavailableError, match=r"ledger\.db does not answer: file is not a database"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db").create()


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    """Before anything is read wrongly."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger(url)
    ledger.create()
    with ledger._write() as session:
        row = session.get(MetaRow, "schema")
        assert row is not None
        row.value = "999"
    with pytest.raises(SettingsError, match="schema version 999, this Holdfast needs 1"):
        ledger.create()
    ledger.close()
