"""The ledger's schema: made, taken up, brought up to date, refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect, text
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.errors import SettingsError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.ledger import Ledger, migrate
from holdfast.storage.ledger.schema import HEAD, Base
from tests.storage.ledger.samples import running_job

# The tables of before migrations, as create_all made them: all that came later is left out.
LATER = {"job_leases", "leaders", "waits", "inputs", "repairs"}


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(url)
    yield made
    made.dispose()


def before_migrations(engine: Engine, without: frozenset[str] = frozenset()) -> None:
    """A ledger as an earlier Holdfast left it, with one job and a code update that waits."""
    left_out = LATER | without
    tables = [table for table in Base.metadata.sorted_tables if table.name not in left_out]
    with engine.begin() as connection:
        Base.metadata.create_all(connection, tables=tables)
        if engine.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE checkpoints ALTER COLUMN nbytes TYPE INTEGER"))
        connection.execute(text("ALTER TABLE machines DROP COLUMN location"))
        if "by_hand" not in left_out:
            connection.execute(text("ALTER TABLE by_hand DROP COLUMN source"))
        connection.execute(text("INSERT INTO meta VALUES ('schema', '1'), ('pending:gpt', 'v2')"))
        connection.execute(
            text(
                "INSERT INTO jobs VALUES ('gpt', :spec, 'running', 3, 'v1', '[]', 1.0, NULL, 0, 2)",
            ),
            {
                "spec": json.dumps(
                    {"name": "gpt", "script": "train.py", "machines": 1, "ranks_per_machine": 1}
                )
            },
        )


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


def test_the_migrations_make_the_tables_of_the_models(engine: Engine) -> None:
    """A column that is added to a model alone fails here: add a migration (see its alembic.ini)."""
    with engine.begin() as connection:
        migrate._run(connection)
    assert differences(engine) == []


def test_a_new_ledger_is_at_the_newest_schema(url: str, engine: Engine) -> None:
    """Made at once, and made again it stays as it is."""
    ledger = Ledger(url)
    assert ledger.revision() is None
    assert ledger.create() == (None, HEAD)
    assert ledger.create() == (HEAD, HEAD)
    assert ledger.revision() == HEAD
    assert differences(engine) == []
    ledger.close()


def test_the_newest_migration_is_the_one_that_the_models_name() -> None:
    """One line of revisions, in their order."""
    config = Config()
    config.set_main_option("script_location", str(migrate.FOLDER))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [HEAD]
    revisions = [found.revision for found in script.walk_revisions()]
    assert revisions == sorted(revisions, reverse=True)


@pytest.mark.parametrize("missing", [frozenset(), frozenset({"pool_groups", "by_hand"})])
def test_a_ledger_of_before_migrations_is_taken_up(url: str, engine: Engine, missing: frozenset[str]) -> None:
    """What is in it stays, tables that it lacks are made, and the schema is the same as of a new one."""
    before_migrations(engine, missing)
    ledger = Ledger(url)
    with pytest.raises(SettingsError, match=r"schema of before migrations.*`holdfast ledger upgrade`"):
        ledger.jobs()
    assert ledger.create() == (None, HEAD)
    assert [(job.name, job.epoch) for job in ledger.jobs()] == [("gpt", 3)]
    with engine.connect() as connection:
        kept = connection.execute(text("SELECT value FROM meta WHERE key = 'pending:gpt'")).scalar()
    assert kept == "v2"
    assert differences(engine) == []
    ledger.close()


@pytest.mark.parametrize("use", [Ledger.create, Ledger.jobs], ids=["create", "read"])
def test_a_newer_schema_is_refused(url: str, ledger: Ledger, engine: Engine, use: object) -> None:
    """By all who open it, before anything is read or written; what is there stays."""
    running_job(ledger)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    opened = Ledger(url)
    with pytest.raises(SettingsError, match=rf"schema 0999, this Holdfast knows up to {HEAD}: a newer Hold"):
        use(opened)  # type: ignore[operator]
    opened.close()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "0999"


def test_tables_of_an_unknown_maker_are_refused(url: str, engine: Engine) -> None:
    """A version that none of the migrations knows is not guessed at."""
    before_migrations(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE meta SET value = '7' WHERE key = 'schema'"))
    with pytest.raises(SettingsError, match="schema version 7, expected 1"):
        Ledger(url).create()
    assert not inspect(engine).has_table("alembic_version")


def test_a_migration_that_fails_changes_nothing(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in one transaction, on SQLite too."""
    before_migrations(engine)
    tables = inspect(engine).get_table_names()
    run = migrate._run

    def fails(connection: object) -> None:
        run(connection)  # type: ignore[arg-type]
        raise OSError("pulled the plug")

    monkeypatch.setattr(migrate, "_run", fails)
    with pytest.raises(OSError, match="plug"):
        Ledger(url).create()
    assert sorted(inspect(engine).get_table_names()) == sorted(tables)


def test_an_earlier_holdfast_refuses_a_migrated_ledger(ledger: Ledger, engine: Engine) -> None:
    """It looks at one row, and finds another number there than its own 1."""
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM meta WHERE key = 'schema'")).scalar() == str(
            int(HEAD)
        )


def test_checkpoints_are_larger_than_two_gib(ledger: Ledger) -> None:
    """On every database."""
    running_job(ledger)
    ledger.record_checkpoint(
        RemoteCheckpoint(
            job="gpt", step=7, epoch=1, world_size=8, key="gpt/7", saved_at=1.0, nbytes=405_000_000_000
        )
    )
    (found,) = ledger.checkpoints("gpt")
    assert found.nbytes == 405_000_000_000


def test_steps_have_64_bits(ledger: Ledger) -> None:
    """On every database: scripts count tokens."""
    running_job(ledger)
    far = 2**63 - 1
    ledger.open_epoch("gpt", 9, far - 2, "v1", ["m0"], "test")
    ledger.mark("gpt", 9, far - 1, 5.0)
    ledger.mark("gpt", 9, far, 6.0)
    row = ledger.epochs("gpt")[-1]
    assert (row.start_step, row.first_step, row.last_step) == (far - 2, far - 1, far)
    assert ledger.stretches("gpt")[-1].last_step == far
    assert ledger.max_step("gpt") == far


def test_the_command_upgrades_and_tells(tmp_path: object, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """`holdfast ledger version` and `upgrade`."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url)
    runner = CliRunner()
    assert f"no schema yet; this Holdfast: {HEAD}" in runner.invoke(app, ["ledger", "version"]).output
    assert f"schema {HEAD} (before: none)" in runner.invoke(app, ["ledger", "upgrade"]).output
    assert f"schema {HEAD} already" in runner.invoke(app, ["ledger", "upgrade"]).output
    told = runner.invoke(app, ["ledger", "version", "--json"]).output
    assert json.loads(told) == {"ledger": HEAD, "holdfast": HEAD}
