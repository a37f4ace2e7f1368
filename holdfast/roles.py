"""Roles, inside a job's processes: who this process is, where the others are, and how they learn of its address.

    from holdfast import roles

    roles.announce(port)                        # this process can be reached there
    roles.addresses("rollout")                  # {0: "10.0.0.4:4001", 2: "10.0.0.5:4001"}
    roles.wait_for("cache")                     # until one is there
    for members in roles.watch("rollout"): ...  # at each change
    roles.alive()                               # in each turn of its loop: else it is taken to hang

All of it reads and writes files of the machine's agent: no call waits for the network. Without an agent there are
no members, and an announcement does nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.models.roles import TRAINER

ENV_ROLE = "HOLDFAST_ROLE"
ENV_INDEX = "HOLDFAST_ROLE_INDEX"
ENV_GENERATION = "HOLDFAST_ROLE_GENERATION"  # of this replica; a rank's is its epoch
ENV_FOLDER = "HOLDFAST_ROLES"  # folder of the job's members and announcements on this machine
ENV_HOST = "HOLDFAST_ROLE_HOST"  # where the others reach this machine

MEMBERS = "members.json"
_NOTES = "announced"
ADDRESS, ALIVE = "json", "alive"
_LOOK_S = 0.1


def role() -> str:
    """Return the role of this process; ``trainer`` for a rank, and without an agent."""
    return os.environ.get(ENV_ROLE, TRAINER)


def index() -> int:
    """Return the index of this process in its role: a rank's number, or a replica's."""
    return int(os.environ.get(ENV_INDEX) or os.environ.get("RANK") or 0)


def host() -> str:
    """Return the address at which the others reach this machine: where to listen."""
    return os.environ.get(ENV_HOST, "127.0.0.1")


def announce(port: int) -> None:
    """Have the other processes of the job learn that this one can be reached at ``port`` of its machine.

    Call it when the port answers. The address is withdrawn when the process ends, or is replaced by another one.
    """
    if not 0 < port < 65536:
        raise ValueError(f"port = {port}: expected 1 to 65535")
    if (path := _own_note(ADDRESS)) is not None:
        written(path, {"port": port, "pid": os.getpid()})


def alive() -> None:
    """Note that this process makes progress: with ``restart.silent_s`` in its role, one that hangs is started again.

    Cheap; call it in each turn of the main loop. It counts from the first call on: a long start is no silence.
    """
    if (path := _own_note(ALIVE)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)


def addresses(of: str) -> dict[int, str]:
    """Return the addresses (``host:port``) of a role's members by index, as far as they are known now."""
    return {int(member["index"]): str(member["address"]) for member in _members() if member.get("role") == of}


def wait_for(of: str, members: int = 1, timeout_s: float | None = None) -> dict[int, str]:
    """Return the addresses of a role once at least ``members`` are known.

    Raises:
        TimeoutError: that took longer than ``timeout_s``.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while len(found := addresses(of)) < members:
        if end is not None and time.monotonic() > end:
            raise TimeoutError(
                f"role {of}: {len(found)} of {members} members announced an address within {timeout_s:g} s"
            )
        time.sleep(_LOOK_S)
    return found


def watch(of: str) -> Iterator[dict[int, str]]:
    """Yield a role's addresses now and after each change, without end."""
    before: dict[int, str] | None = None
    while True:
        if (found := addresses(of)) != before:
            before = found
            yield dict(found)
        else:
            time.sleep(_LOOK_S)


def written(path: Path, content: Any) -> None:
    """Write a file whole, in one step, readable by its owner only; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    new.replace(path)


def read(path: Path) -> Any:
    """Return the content of such a file; None: it is not there."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def note(folder: Path, of: str, index: int, generation: int, kind: str) -> Path:
    """Return the file in a job's folder that a process writes for its agent: its :data:`ADDRESS`, or :data:`ALIVE`."""
    return folder / _NOTES / f"{of}-{index}-{generation}.{kind}"


def _own_note(kind: str) -> Path | None:
    folder = os.environ.get(ENV_FOLDER)
    generation = int(os.environ.get(ENV_GENERATION) or 0)
    return note(Path(folder), role(), index(), generation, kind) if folder else None


def _members() -> list[dict[str, Any]]:
    folder = os.environ.get(ENV_FOLDER)
    found = read(Path(folder) / MEMBERS) if folder else None
    return found.get("members", []) if isinstance(found, dict) else []
