"""Names that older releases took and today's refuse (slashes, control characters, ..) give way to names of their own.

What has one cannot be used: its job is stopped, its machine gone, and an entry among what was done by hand has the old
name. All other rows stay readable. Nothing is done to a ledger without such names.
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
AS_WRITTEN = ("by_hand", "meta", "alembic_version", "leaders", "pool_groups")
ENDED = ("stopped", "failed", "done")


def upgrade() -> None:
    """Rename, stop, and note it."""
    connection = op.get_bind()
    known = sa.MetaData()
    known.reflect(bind=connection)
    tables = {name: table for name, table in known.tables.items() if name not in AS_WRITTEN}
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
                found |= _replaced(values, pattern)
            elif f"{name}.{column.name}" in LISTS:
                for row in connection.execute(sa.select(column)).scalars():
                    found |= _replaced(row or (), MACHINE)
    return found


def _replaced(values: Any, pattern: re.Pattern[str]) -> dict[str, str]:
    bad = (each for each in values if isinstance(each, str) and not pattern.fullmatch(each))
    if pattern is INCARNATION:  # no name of anything: the next registration brings one
        return dict.fromkeys(bad, "")
    return {
        each: f"unusable-{hashlib.sha256(each.encode('utf-8', 'replace')).hexdigest()[:12]}" for each in bad
    }


def _rename(connection: sa.Connection, tables: Mapping[str, sa.Table], names: Mapping[str, str]) -> None:
    incidents = tables["incidents"]
    old = [row for row in connection.execute(sa.select(incidents)).mappings().all() if row["id"] in names]
    for row in old:  # beside the old ones, which others refer to
        connection.execute(incidents.insert().values({**row, "id": names[row["id"]]}))
    for name, table in tables.items():
        key = list(table.primary_key.columns)
        changes = []
        for row in connection.execute(sa.select(table)).mappings():
            if name == "incidents" and row["id"] in names:
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
    if isinstance(value, (dict, list)):
        return _inside(value, names)
    if isinstance(value, str) and _pattern(table, column) is not None:
        return names.get(value, value)
    return value


def _inside(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): _inside(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_inside(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


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
