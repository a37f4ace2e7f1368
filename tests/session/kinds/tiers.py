"""One rank's saves under a fake agent, and the ways back: own memory, a copy of the file, a directory, S3."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import wire
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.session import Session
from holdfast.storage import objects
from tests.session.harness import FakeAgent, patience
from tests.session.small import session_of
from tests.storage.checkpoints.publish import publish
from tests.storage.checkpoints.upload import upload

TIERS = ("memory", "copy", "s3")


class Bucket:
    """As much of an object store as uploads and restores need, in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, key: str, body: Any) -> None:
        self.held[key] = bytes(body)

    def get(self, key: str) -> bytes:
        return self.held[key]

    def get_range(self, key: str, start: int, nbytes: int) -> bytes:
        return self.held[key][start : start + nbytes]

    def read_range(
        self, key: str, start: int, nbytes: int, chunk_nbytes: int, take: Callable[[bytes], None]
    ) -> None:
        content = self.get_range(key, start, nbytes)
        for at in range(0, nbytes, chunk_nbytes):
            take(content[at : at + chunk_nbytes])


class Site:
    """Saves of one rank, and restores of them into fresh objects."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.agent = folder, FakeAgent(folder, 1)
        self._count = 0

    def begin(self, state: Mapping[str, Any], restore: tuple[int, Path] | None = None) -> Session:
        """A session of a new epoch, its state restored."""
        session = session_of(self.agent, restore)
        session.restore(state)
        return session

    @staticmethod
    def save(session: Session, state: Mapping[str, Any], step: int) -> None:
        """Save as of ``step``; it must count."""
        before = session.counts.saved
        session.step(step)
        session.checkpoint(state)
        assert session.flush()
        assert session.counts.saved == before + 1, f"the save of step {step} did not count"

    def restore(self, tier: str, step: int, state: Mapping[str, Any]) -> Session:
        """Bring ``state`` back as of ``step``, and go on with it."""
        shard = self.agent.shard(0, step)
        if tier == "s3":
            return self._from_store(step, state)
        if tier == "copy":
            self._count += 1
            copied = self.folder / f"copy{self._count}" / shard.name
            copied.parent.mkdir()
            shutil.copy(shard, copied)
            shutil.copytree(shard.parent, copied.parent, dirs_exist_ok=True, ignore=_not_metadata)
            shard = copied
        return self.begin(state, (step, shard))

    def _from_store(self, step: int, state: Mapping[str, Any]) -> Session:
        """A session of a new epoch whose ticket names the checkpoint in S3, as for a job that lost all machines."""
        self._count += 1
        bucket: Any = Bucket()
        folder = publish(self.agent.shards, step, self.folder / f"s3-{self._count}")
        saved: RemoteCheckpoint = upload(bucket, folder, step=step)
        ticket = self.folder / f"ticket-{self._count}"
        place = {"job": "gpt", "step": step, "tier": "s3", "key": saved.key, "path": "", "alone": False}
        ticket.write_text(json.dumps(place | {"store": {}}))
        variables = {wire.ENV_RESTORE: json.dumps({"step": step, "ticket": str(ticket)})}
        session = session_of(self.agent, **variables)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objects, "connect", lambda _: bucket)
            assert session.restore(state) == step
        return session


def _not_metadata(_: str, names: list[str]) -> set[str]:
    return {each for each in names if each.endswith(".shard")}


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A site that is stopped in the end."""
    made = Site(folder)
    with patience():
        try:
            yield made
        finally:
            made.agent.close()
