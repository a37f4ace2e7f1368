"""One job three times: as a whole; killed and resumed from memory; killed and resumed from S3."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.agent import wire
from holdfast.storage.objects.s3 import S3Store
from tests.session.harness import FakeAgent
from tests.storage.checkpoints.publish import publish
from tests.storage.checkpoints.upload import upload
from tests.storage.conftest import ACCESS_KEY, SECRET_KEY

SCRIPTS = Path(__file__).parent / "scripts" / "frameworks"
DIES_AT = 6
"""Of nine steps."""


@dataclass(frozen=True)
class Job:
    """A script of ``scripts/frameworks`` on so many ranks."""

    script: str
    kind: str
    ranks: int = 1
    needs: str = "torch"
    """The package without which it is skipped."""


def ends_the_same(make_agent: Callable[[int], FakeAgent], store: S3Store, folder: Path, job: Job) -> None:
    """Fail unless both resumed runs read what the whole one read and end as it does, bit for bit, on every rank."""
    if find_spec(job.needs) is None:
        pytest.skip(f"{job.needs} is not installed: `make test-frameworks`")
    whole, broken = make_agent(job.ranks), make_agent(job.ranks)
    expected = _life(whole, folder / "whole", job)
    broken_in = folder / "killed"
    _start(broken, broken_in, job, DIES_AT)
    assert broken.join() == [-9] * job.ranks, broken.output()
    step = broken.common_step()
    assert 1 <= step < DIES_AT
    key = upload(
        store, publish(broken.shards, step, folder / "published"), step=step, world_size=job.ranks
    ).key
    shards = {rank: broken.shard(rank, step) for rank in range(job.ranks)}
    from_memory = _life(broken, folder / "memory", job, lambda rank: (step, shards[rank]), before=broken_in)
    assert_same(expected, from_memory, f"{job.kind}, from memory at step {step}")
    ticket = folder / "ticket"
    restored = {"tier": "s3", "key": key, "path": "", "job": "gpt", "step": step, "alone": False}
    ticket.write_text(json.dumps(restored | {"store": _reached(store)}))
    other = make_agent(job.ranks)
    from_s3 = _life(other, folder / "s3", job, before=broken_in, ticket=(step, ticket))
    assert_same(expected, from_s3, f"{job.kind}, from S3 at step {step}")


def _reached(store: S3Store) -> dict[str, str]:
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    return {"endpoint": store.endpoint, "bucket": store.bucket, **keys}


def _life(
    agent: FakeAgent,
    folder: Path,
    job: Job,
    restore: Callable[[int], tuple[int, Path]] | None = None,
    *,
    before: Path | None = None,
    ticket: tuple[int, Path] | None = None,
) -> dict[str, Any]:
    """To the end; what each rank read, also ``before``, and ended with."""
    _start(agent, folder, job, 0, restore, ticket=ticket)
    assert agent.join() == [0] * job.ranks, agent.output()
    found: dict[str, Any] = {}
    for rank in range(job.ranks):
        read = _read(before, rank) | _read(folder, rank)
        end = torch.load(folder / f"end-{rank}.pt", weights_only=False)
        found[f"rank {rank}"] = {"read": read, "end": end}
    return found


def _start(
    agent: FakeAgent,
    folder: Path,
    job: Job,
    dies_at: int,
    restore: Callable[[int], tuple[int, Path]] | None = None,
    *,
    ticket: tuple[int, Path] | None = None,
) -> None:
    folder.mkdir()
    extra = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(job.ranks)}
    if ticket:
        extra[wire.ENV_RESTORE] = json.dumps({"step": ticket[0], "ticket": str(ticket[1])})
    agent.start(SCRIPTS / f"{job.script}.py", [job.kind, str(folder), str(dies_at)], restore, **extra)


def _read(folder: Path | None, rank: int) -> dict[str, str]:
    if folder is None:
        return {}
    lines = (folder / f"read-{rank}.txt").read_text().splitlines()
    return dict(line.split() for line in lines)


def assert_same(expected: Any, found: Any, where: str) -> None:
    """Fail at the first place where two plain structures differ, and name it."""
    difference = _difference(expected, found, "")
    assert difference is None, f"{where}: {difference}"


def _difference(expected: Any, found: Any, path: str) -> str | None:
    if type(expected) is not type(found):
        return f"{path}: {expected!r} and {found!r}"
    if isinstance(expected, Tensor):
        same = expected.dtype == found.dtype and expected.shape == found.shape
        return None if same and _bytes(expected) == _bytes(found) else f"{path}: {expected} and {found}"
    if isinstance(expected, dict):
        if list(expected) != list(found):
            return f"{path}: keys {list(expected)} and {list(found)}"
        pairs = [(key, each, found[key]) for key, each in expected.items()]
    elif isinstance(expected, list):
        if len(expected) != len(found):
            return f"{path}: {len(expected)} and {len(found)} items"
        pairs = [(key, *each) for key, each in enumerate(zip(expected, found, strict=True))]
    else:
        return None if expected == found else f"{path}: {expected!r} and {found!r}"
    return next((first for key, one, two in pairs if (first := _difference(one, two, f"{path}.{key}"))), None)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
