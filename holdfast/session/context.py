"""What a rank knows of its place: read once from the environment that its agent gave it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent import wire
from holdfast.errors import SettingsError


@dataclass(frozen=True)
class RestoreFrom:
    """Where this rank's state is: a shard file or a checkpoint directory; ``path`` None: from scratch."""

    step: int = 0
    path: Path | None = None


@dataclass(frozen=True)
class Context:
    """A rank under an agent."""

    job: str
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

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Context | None:
        """The context in ``environ``; None when no agent started this process (plain torchrun or python).

        Raises:
            SettingsError: the environment is there and wrong.
        """
        if not environ.get(wire.ENV_SOCKET):
            return None
        try:
            replay = environ.get(wire.ENV_REPLAY_STEPS)
            return cls(
                job=environ[wire.ENV_JOB],
                epoch=int(environ[wire.ENV_EPOCH]),
                rank=int(environ.get("RANK", "0")),
                world_size=int(environ.get("WORLD_SIZE", "1")),
                socket=environ[wire.ENV_SOCKET],
                control=Path(environ[wire.ENV_CONTROL]),
                shards=Path(environ[wire.ENV_SHARDS]),
                restore=_restore(environ.get(wire.ENV_RESTORE, "")),
                replay_steps=int(replay) if replay else None,
                has_peer=environ.get(wire.ENV_PEER) == "1",
            )
        except (KeyError, ValueError) as error:
            raise SettingsError(
                f"environment of a rank under an agent is incomplete or wrong: {error!r}. "
                f"Unset {wire.ENV_SOCKET} to run without an agent."
            ) from error


def _restore(text: str) -> RestoreFrom:
    order = json.loads(text) if text else {}
    path = order.get("path")
    return RestoreFrom(step=int(order.get("step") or 0), path=Path(path) if path else None)
