"""The ledger's schema: made, taken up, brought up to date, refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Connection, Engine, column, create_engine, inspect, table, text
from sqlalchemy.exc import IntegrityError
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.errors import SettingsError
from holdfast.models.alert import IncidentState
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
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
        for column_name in ("location", "role", "lease_s"):
            connection.execute(text(f"ALTER TABLE machines DROP COLUMN {column_name}"))
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
    """Its rows stay, missing tables are made, and the schema is the same as of a new one."""
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


HOSTILE = ("../../etc", "a/b", "a\x1b[31mb", "a\nb", ".hidden", "Ünder", "x" * 200)


def _insert(connection: Connection, into: str, **values: object) -> None:
    """A row without what later columns have by default."""
    columns = (column(each, JSON() if isinstance(values[each], (dict, list)) else None) for each in values)
    connection.execute(table(into, *columns).insert().values(values))


def _with_names(engine: Engine, names: Sequence[str]) -> None:
    """Rows of a release that took any name: jobs, machines, incidents and what refers to them."""

    with engine.begin() as connection:
        insert = functools.partial(_insert, connection)
        machines = [f"{name}/m" if name in HOSTILE else f"{name}-m" for name in names]
        for name, machine in zip(names, machines, strict=True):
            spec = {"name": name, "script": "train.py", "machines": 1, "ranks_per_machine": 1}
            values = {
                "spec": spec,
                "epoch": 2,
                "code_version": name,
                "machines": [machine],
                "submitted_at": 1.0,
            }
            insert("jobs", name=name, state="running", submitted_epoch=0, incidents=1, **values)
            lives = {
                "incarnation": "i 1",
                "address": "",
                "data_address": "",
                "seen_at": 0.0,
                "registered_at": 0.0,
            }
            insert("machines", name=machine, state="active", job=name, **lives)
            incident = {"job": name, "n": 1, "incident_class": "job_crash", "state": "open", "epoch": 2}
            times = {"detected_at": 1.0, "opened_at": 1.0, "confidence": 1.0, "reasons": [], "summary": ""}
            insert("incidents", id=f"{name}-1", attempt=1, machine=machine, **incident, **times)
            body = {"kind": "rank_exit", "job": name, "machine": machine, "at": 1.0}
            insert("incident_alerts", incident_id=f"{name}-1", key="k", body=body)
            insert("alerts", kind="rank_exit", job=name, outcome="", recorded_at=1.0, body=body)
            intent = {"intent": {"machines": {machine: 1}}, "result": {}, "begun_at": 1.0, "state": "intent"}
            insert("actions", incident_id=f"{name}-1", key="k", kind="evict", attempt=1, **intent)
            epoch = {"code_version": name, "machines": [machine], "reason": "", "opened_at": 1.0}
            insert("epochs", job=name, epoch=2, start_step=0, incident_id=f"{name}-1", **epoch)
            saved = {"key": f"{name}/7", "suspect": False, "suspect_reason": "", "saved_at": 1.0, "nbytes": 1}
            insert("checkpoints", job=name, step=7, epoch=2, world_size=1, **saved)
            code = {
                "key": f"{name}/code",
                "note": "",
                "by": "",
                "created_at": 1.0,
                "bad": False,
                "bad_reason": "",
            }
            insert("code_versions", job=name, version=name, **code)
            insert("job_states", job=name, state="running", at=1.0)
        # A good job that has one of these machines.
        gpt = Base.metadata.tables["jobs"]
        connection.execute(gpt.update().where(gpt.c.name == "gpt").values(machines=["m0", machines[0]]))


def test_incidents_of_before_migrations_are_taken_up(url: str, engine: Engine) -> None:
    """With the rows that refer to them, also where a migration makes their table again; on SQLite this is checked."""
    before_migrations(engine)
    _with_names(engine, ["good"])
    ledger = Ledger(url)
    assert ledger.create() == (None, HEAD)
    assert ledger.job("good").state is JobState.RUNNING
    (incident,) = ledger.incidents("good")
    assert [alert.machine for alert in incident.alerts] == ["good-m"]
    assert [action.kind for action in ledger.actions(incident.id)] == ["evict"]
    assert ledger.by_hand() == []
    with pytest.raises(IntegrityError), ledger._write() as session:
        session.execute(text("DELETE FROM incidents"))
    ledger.close()


def test_names_that_are_refused_today_hide_no_others(url: str, engine: Engine) -> None:
    """An entry with such a name gets another, stopped or gone; the rest is as it was; its old name is noted."""
    before_migrations(engine)
    _with_names(engine, HOSTILE)
    ledger = Ledger(url)
    assert ledger.create() == (None, HEAD)
    jobs = {job.name: job for job in ledger.jobs()}
    unusable = sorted(jobs.keys() - {"gpt"})
    assert len(unusable) == len(HOSTILE)
    assert all(name.startswith("unusable-") for name in unusable)
    assert jobs["gpt"].state is JobState.RUNNING
    assert {jobs[name].state for name in unusable} == {JobState.STOPPED}
    machines = {machine.name: machine for machine in ledger.machines()}
    assert {machine.state for machine in machines.values()} == {MachineState.GONE}
    assert jobs["gpt"].machines[0] == "m0"
    assert jobs["gpt"].machines[1] in machines
    for name in unusable:
        (incident,) = ledger.incidents(name)
        assert (incident.state, incident.job) == (IncidentState.STOPPED, name)
        assert {incident.machine, *(alert.machine for alert in incident.alerts)} == {*jobs[name].machines}
        (action,) = ledger.actions(incident.id)
        assert action.intent == {"machines": {jobs[name].machines[0]: 1}}
        assert [epoch.incident_id for epoch in ledger.epochs(name)] == [incident.id]
        assert ledger.checkpoints(name)[0].job == ledger.versions(name)[0].job == name
        assert ledger.history(name)
    assert len(ledger.alerts()) == len(HOSTILE)
    noted = {each.target: each.reason for each in ledger.by_hand()}
    assert all(any(repr(name)[:200] in reason for reason in noted.values()) for name in HOSTILE)
    assert noted.keys() >= jobs.keys() - {"gpt"}
    assert differences(engine) == []
    ledger.add_job(jobs[unusable[0]].spec, "v1")  # it has ended: the name may be used, or left
    ledger.close()


SPEC = {"name": "gpt", "script": "train.py", "machines": 1, "ranks_per_machine": 1}


def _gpt(connection: Connection, **fields: object) -> None:
    """Give the job gpt a machine, and its spec further fields."""
    values = {"spec": json.dumps(SPEC | fields), "machines": json.dumps(["Node_1"])}
    connection.execute(text("UPDATE jobs SET spec = :spec, machines = :machines WHERE name = 'gpt'"), values)
    blank = {"incarnation": "", "address": "", "data_address": "", "seen_at": 0.0, "registered_at": 0.0}
    _insert(connection, "machines", name="Node_1", state="active", job="gpt", **blank)


def test_names_that_are_bad_of_another_kind_stay(url: str, engine: Engine) -> None:
    """As do a script's texts, what is empty where it may be, and tables that are not the ledger's."""
    before_migrations(engine)
    with engine.begin() as connection:
        _gpt(connection, args=["", "Node_1", "a/b"], env={"EMPTY": "", "WHERE": "a/b"})
        # A monitor named its own job, which is no name of ours, and no machine.
        body = {"kind": "rank_exit", "job": "Node_1", "machine": "", "at": 1.0}
        alert = {"kind": "rank_exit", "job": "Node_1", "machine": "", "outcome": "", "recorded_at": 1.0}
        _insert(connection, "alerts", body=body, **alert)
        _insert(connection, "alerts", body=body | {"machine": "a/b"}, **alert | {"machine": "a/b"})
        connection.execute(text("CREATE TABLE of_others (version VARCHAR(32))"))
        connection.execute(text("INSERT INTO of_others VALUES ('a/b')"))
    ledger = Ledger(url)
    ledger.create()
    job, machine = ledger.job("gpt"), ledger.machine("Node_1")
    assert job.spec.args == ("", "Node_1", "a/b")
    assert job.spec.env == {"EMPTY": "", "WHERE": "a/b"}
    assert (job.state, job.machines) == (JobState.RUNNING, ("Node_1",))
    assert (machine.state, machine.incarnation) == (MachineState.ACTIVE, "")
    for alert in ledger.alerts():
        assert str(alert.job).startswith("unusable-")
        assert str(alert.machine).startswith("unusable-")
    assert {each.reason for each in ledger.by_hand()} == {
        f"its name {name!r} cannot be used any more" for name in ("Node_1", "", "a/b")
    }
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version FROM of_others")).scalar() == "a/b"
    ledger.close()


def test_variables_that_no_process_can_have_do_not_hide_their_job(url: str, engine: Engine) -> None:
    """An older release took them into the ledger, where they would be refused with all jobs."""
    before_migrations(engine)
    with engine.begin() as connection:
        _gpt(connection, env={"": "1", "A=B": "1", "A": "a\0b", "KEPT": "="})
    ledger = Ledger(url)
    ledger.create()
    assert ledger.job("gpt").spec.env == {"KEPT": "="}
    assert ledger.by_hand() == []
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


def test_the_command_upgrades_and_reports(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """`holdfast ledger version` and `upgrade`."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url)
    runner = CliRunner()
    assert f"no schema yet; this Holdfast: {HEAD}" in runner.invoke(app, ["ledger", "version"]).output
    assert f"schema {HEAD} (before: none)" in runner.invoke(app, ["ledger", "upgrade"]).output
    assert f"schema {HEAD} already" in runner.invoke(app, ["ledger", "upgrade"]).output
    output = runner.invoke(app, ["ledger", "version", "--json"]).output
    assert json.loads(output) == {"ledger": HEAD, "holdfast": HEAD}
