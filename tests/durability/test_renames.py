"""Renames: files that must survive are renamed by one module only; every other rename is listed here."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RENAME = re.compile(r"os\.(?:rename|replace)\(|[\w)]\.rename\(|\b(?:new|path)\.replace\(")
SHORT_LIVED = {
    "holdfast/agent/diagnostics/warm_checks.py": "an order to a process that runs",
    "holdfast/agent/diagnostics/check_part.py": "an outcome of a check that runs",
    "holdfast/agent/diagnostics/check_process.py": "an order to a process that runs",
    "holdfast/agent/daemon.py": "the pid of an agent that runs",
    "holdfast/agent/ranks/flight_thread.py": "a recording of a process that runs",
    "holdfast/agent/checkpoints/prove_main.py": "an answer of a process that runs",
    "holdfast/agent/ranks/rendezvous.py": "an answer of a process that runs",
    "holdfast/agent/ranks/handed.py": "an order to a rank that runs",
    "holdfast/roles.py": "addresses of processes that run",
    "holdfast/inject/target.py": "a fault for processes that run",
    "storage/code/versions.py": "a checkout found broken, out of the way of a whole one",
    "storage/checkpoints/save/odd_files.py": "a folder in the place of a shard, out of its way",
    "storage/checkpoints/save/slot_files.py": "an empty slot, before anything is saved in it",
    "storage/objects/landing.py": "a download; who keeps it syncs it with its folder",
    "deployments/local/pidfile.py": "the pid of a service that runs",
    "deployments/local/supervisor.py": "a log that is full",
}
"""Files with renames of what a reboot ends anyway, and what that is."""


def test_what_must_survive_is_put_in_place_by_one_module() -> None:
    """A new rename is of something short-lived that is named here, or belongs into ``holdfast.durable``."""
    folders = ("holdfast", "storage", "flows", "tasks", "policies", "deployments")
    paths = [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    linked = (
        "holdfast/storage",
        "holdfast/flows",
        "holdfast/tasks",
        "holdfast/policies",
        "holdfast/deployments",
    )
    own = [path for path in paths if not str(path).startswith(linked)]
    found = {str(path) for path in own if RENAME.search((ROOT / path).read_text())}
    assert found == SHORT_LIVED.keys() | {"holdfast/durable.py"}
