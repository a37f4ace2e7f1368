"""A rank's place and settings: read once from the environment that its agent gave it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent import wire
from holdfast.errors import SettingsError
from holdfast.models.checkpoint import Copies


@dataclass(frozen=True)
class RestoreFrom:
    """The source that this rank resumes from; neither ticket nor path: from scratch."""

    step: int = 0
    ticket: Path | None = None
    """File that appears when the state is within the rank's reach, and that names its place."""
    path: Path | None = None
    """A shard file or a checkpoint directory that is there already."""


@dataclass(frozen=True)
class RankContext:
    """A rank under an agent."""

    job: str
    machine: str
    epoch: int
    rank: int
    world_size: int
    socket: str
    control: Path
    shards: Path
    restore: RestoreFrom
    replay_steps: int | None
    """Set in a replay: run so many steps, save nothing."""
    has_peer: bool
    local_world_size: int = 1
    memory_every: int = 1
    """A save is due every so many steps."""
    max_overhead: float | None = None
    """Largest share of training time that saves may take; None: they are made at every due call."""
    skip_steps: frozenset[int] = frozenset()
    """Steps whose data the script passes over."""
    copies: Copies = field(default_factory=Copies)
    """Of this rank's state, in the first tier."""
    patience_s: float | None = None
    """How long a save waits for the one before it instead of being skipped; None: hardly."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> RankContext | None:
        """Return the context in ``environ``; None when no agent started this process (plain torchrun or python).

        Raises:
            SettingsError: the environment is there and wrong.
        """
        if not environ.get(wire.ENV_SOCKET):
            return None
        try:
            replay = environ.get(wire.ENV_REPLAY_STEPS)
            has_peer = environ.get(wire.ENV_PEER) == "1"
            return cls(
                job=environ[wire.ENV_JOB],
                machine=environ.get(wire.ENV_MACHINE, ""),
                epoch=int(environ[wire.ENV_EPOCH]),
                rank=int(environ.get("RANK", "0")),
                world_size=int(environ.get("WORLD_SIZE", "1")),
                socket=environ[wire.ENV_SOCKET],
                control=Path(environ[wire.ENV_CONTROL]),
                shards=Path(environ[wire.ENV_SHARDS]),
                restore=_restore(environ.get(wire.ENV_RESTORE, "")),
                replay_steps=int(replay) if replay else None,
                has_peer=has_peer,
                local_world_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
                memory_every=int(environ.get(wire.ENV_MEMORY_EVERY, "1")),
                max_overhead=_number(environ.get(wire.ENV_MAX_OVERHEAD)),
                skip_steps=frozenset(map(int, environ.get(wire.ENV_SKIP_STEPS, "").split(",")))
                if environ.get(wire.ENV_SKIP_STEPS)
                else frozenset(),
                copies=_copies(environ.get(wire.ENV_COPIES, ""), has_peer=has_peer),
                patience_s=_number(environ.get(wire.ENV_PATIENCE)),
            )
        except (KeyError, ValueError) as error:
            raise SettingsError(
                f"environment of a rank under an agent is incomplete or wrong: {error!r}. "
                f"Unset {wire.ENV_SOCKET} to run without an agent."
            ) from error


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def _copies(text: str, *, has_peer: bool) -> Copies:
    return Copies.model_validate_json(text) if text else Copies(peer=2 if has_peer else 0)


def _restore(text: str) -> RestoreFrom:
    order = json.loads(text) if text else {}
    ticket, path = order.get("ticket"), order.get("path")
    return RestoreFrom(
        step=int(order.get("step") or 0),
        ticket=Path(ticket) if ticket else None,
        path=Path(path) if path else None,
    )
