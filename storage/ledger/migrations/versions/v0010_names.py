"""Names that older releases took and today's refuse (slashes, control characters, ..) give way to names of their own.

What has one cannot be used: its job is stopped, its machine gone, and an entry among what was done by hand has the old
name. All other rows stay readable. Nothing is done to a ledger without such names.

Variables of a job that no process can be started with are left out of its row: job files may not have them any more.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

JOB = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
MACHINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
INCIDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
INCARNATION = re.compile(r"([A-Za-z0-9][A-Za-z0-9._:@-]{0,255})?")
KEY = re.compile(r"(?!.*//)(?!(.*/)?\.\.?(/|$))[A-Za-z0-9][A-Za-z0-9._~/=-]{0,1023}")
COLUMNS = {
    "job": JOB,
    "machine": MACHINE,
    "version": VERSION,
    "code_version": VERSION,
    "incident_id": INCIDENT,
    "incarnation": INCARNATION,
    "jobs.name": JOB,
    "machines.name": MACHINE,
    "incidents.id": INCIDENT,
    "checkpoints.key": KEY,
    "code_versions.key": KEY,
}
"""Columns with names, in every table or in one."""
LISTS = ("jobs.machines", "epochs.machines")
TABLES = (
    *("jobs", "job_states", "job_leases", "epochs", "stretches", "checkpoints", "suspicions"),
    *("code_versions", "machines", "repairs", "alerts", "incidents", "incident_alerts", "actions"),
    *("inputs", "waits"),
)
"""With names. What was done by hand stays as it was written, and nothing is read of tables that are not ours."""
ENDED = ("stopped", "failed", "done")


def upgrade() -> None:
    """Rename, stop, and note it."""
    connection = op.get_bind()
    known = sa.MetaData()
    known.reflect(bind=connection, only=[*TABLES, "by_hand"])
    tables = {name: known.tables[name] for name in TABLES}
    _leave_variables_out(connection, tables["jobs"])
    if names := _unusable(connection, tables):
        _rename(connection, tables, names)
        _end(connection, known.tables, names)
    # What a Holdfast of before migrations looks at: it refuses the ledger, and says so.
    op.execute("DELETE FROM meta WHERE key = 'schema'")
    op.execute("INSERT INTO meta (key, value) VALUES ('schema', '10')")


def _pattern(table: str, column: str) -> re.Pattern[str] | None:
    return COLUMNS.get(f"{table}.{column}") or COLUMNS.get(column)


def _unusable(connection: sa.Connection, tables: Mapping[str, sa.Table]) -> dict[str, str]:
    """Return the names to be replaced, each with the one that takes its place."""
    found: dict[str, str] = {}
    for name, table in tables.items():
        for column in table.columns:
            if (pattern := _pattern(name, column.name)) is not None:
                values = connection.execute(sa.select(column).distinct()).scalars()
                found = _with(found, values, pattern)
            elif f"{name}.{column.name}" in LISTS:
                for row in connection.execute(sa.select(column)).scalars():
                    found = _with(found, row or (), MACHINE)
    return found


def _with(found: dict[str, str], values: Any, pattern: re.Pattern[str]) -> dict[str, str]:
    bad = [each for each in values if isinstance(each, str) and not pattern.fullmatch(each)]
    if pattern is INCARNATION:  # no name of anything: the next registration brings one
        return dict.fromkeys(bad, "") | found
    return found | {
        each: f"unusable-{hashlib.sha256(each.encode('utf-8', 'replace')).hexdigest()[:12]}" for each in bad
    }


def _rename(connection: sa.Connection, tables: Mapping[str, sa.Table], names: Mapping[str, str]) -> None:
    incidents = tables["incidents"]
    rows = connection.execute(sa.select(incidents)).mappings().all()
    old = [row for row in rows if not INCIDENT.fullmatch(row["id"])]
    for row in old:  # beside the old ones, which others refer to
        connection.execute(incidents.insert().values({**row, "id": names[row["id"]]}))
    for name, table in tables.items():
        key = list(table.primary_key.columns)
        changes = []
        for row in connection.execute(sa.select(table)).mappings():
            if name == "incidents" and not INCIDENT.fullmatch(row["id"]):
                continue
            new = {column: _renamed(name, column, value, names) for column, value in row.items()}
            if changed := {column: new[column] for column in new if new[column] != row[column]}:
                changes.append(([row[each.name] for each in key], changed))
        for values, changed in changes:
            same = [column == value for column, value in zip(key, values, strict=True)]
            connection.execute(table.update().where(*same).values(changed))
    for row in old:
        connection.execute(incidents.delete().where(incidents.c.id == row["id"]))


def _renamed(table: str, column: str, value: Any, names: Mapping[str, str]) -> Any:
    if (pattern := _pattern(table, column)) is not None:
        return _new(value, pattern, names)
    if f"{table}.{column}" in LISTS and isinstance(value, list):
        return [_new(each, MACHINE, names) for each in value]
    if (table, column) == ("jobs", "spec") and isinstance(value, dict):
        # Of its texts the job's own name alone: its arguments and variables are the job's.
        return {key: _new(each, JOB, names) if key == "name" else each for key, each in value.items()}
    return _inside(value, names) if isinstance(value, (dict, list)) else value


def _new(value: Any, pattern: re.Pattern[str], names: Mapping[str, str]) -> Any:
    """Return what takes the place of a name; one that is good of its kind stays, whatever else was called so."""
    if not isinstance(value, str) or pattern.fullmatch(value):
        return value
    return "" if pattern is INCARNATION else names.get(value, value)


def _inside(value: Any, names: Mapping[str, str], field: str = "") -> Any:
    if isinstance(value, dict):
        return {_free(key, names): _inside(each, names, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_inside(each, names) for each in value]
    if isinstance(value, str):
        pattern = COLUMNS.get(field)
        return _free(value, names) if pattern is None else _new(value, pattern, names)
    return value


def _free(value: str, names: Mapping[str, str]) -> str:
    """Return what takes the place of a text whose kind is not known: one that may be a good name of any kind stays."""
    return value if not value or MACHINE.fullmatch(value) else names.get(value) or value


def _leave_variables_out(connection: sa.Connection, jobs: sa.Table) -> None:
    for name, spec in connection.execute(sa.select(jobs.c.name, jobs.c.spec)).tuples().all():
        if (kept := _that_can_be_set(spec)) != spec:
            connection.execute(jobs.update().where(jobs.c.name == name).values(spec=kept))


def _that_can_be_set(spec: Any) -> Any:
    """Return the job, or a role of it, without variables that have no name, or '=' in it, or NUL."""
    if not isinstance(spec, dict):
        return spec
    kept = dict(spec)
    if isinstance(variables := spec.get("env"), dict):
        kept["env"] = {
            name: value
            for name, value in variables.items()
            if name and "=" not in name and "\0" not in name and "\0" not in str(value)
        }
    if isinstance(roles := spec.get("roles"), dict):
        kept["roles"] = {name: _that_can_be_set(role) for name, role in roles.items()}
    return kept


def _end(connection: sa.Connection, tables: Mapping[str, sa.Table], names: Mapping[str, str]) -> None:
    """Stop the jobs, take out the machines, close the incidents; what they were called is noted."""
    now, new = time.time(), set(names.values())
    jobs, machines, incidents = tables["jobs"], tables["machines"], tables["incidents"]
    for job, state in connection.execute(sa.select(jobs.c.name, jobs.c.state)).tuples().all():
        if job not in new:
            continue
        if state not in ENDED:
            connection.execute(jobs.update().where(jobs.c.name == job).values(state="stopped"))
            connection.execute(tables["job_states"].insert().values(job=job, state="stopped", at=now))
        why = "the upgrade stopped its job, whose name cannot be used any more"
        connection.execute(
            incidents.update()
            .where(incidents.c.job == job, incidents.c.state == "open")
            .values(state="stopped", closed_at=now, summary=why)
        )
        for table in ("job_leases", "waits"):
            connection.execute(tables[table].delete().where(tables[table].c.job == job))
    for (machine,) in connection.execute(sa.select(machines.c.name)).tuples().all():
        if machine in new:
            change = machines.update().where(machines.c.name == machine).values(state="gone", job=None)
            connection.execute(change)
    by_hand = tables["by_hand"]
    for before, after in names.items():
        if not after:
            continue
        note = {
            "at": now,
            "by": "the upgrade",
            "via": "api",
            "act": "rename",
            "target": after,
            "reason": f"its name {before!r:.500} cannot be used any more",
            "state": "done",
            "outcome": "",
            "done_at": now,
        }
        connection.execute(by_hand.insert().values(note))
