"""Starts of jobs from another job's checkpoint or another program's: what is meant, whether it is there, its claim."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import CheckpointError, LimitError, RefusedError, SettingsError, UnknownError
from holdfast.models.checkpoint import RemoteCheckpoint, RestorePlan
from holdfast.models.job import Job, JobSpec
from holdfast.models.missing import Missing
from holdfast.models.start_from import StartFrom
from holdfast.operations.context import Context
from holdfast.policies.restore import lineage
from holdfast.storage import objects
from holdfast.storage.checkpoints.format.names_only import files_in, has_part, names_in, parts_of
from holdfast.storage.checkpoints.remote import claims, manifests
from holdfast.storage.objects import ObjectStore

MOST_BYTES = 16 << 20
"""Metadata of more is not read at submission: parts that are missing there are named by the first restore."""


async def resolve(ctx: Context, spec: JobSpec) -> JobSpec:
    """Return the spec with the very checkpoint that it starts from: step and epoch.

    Raises:
        RefusedError: there is no such job, step, path or part, or a file is missing; nothing was changed.
        UnavailableError: S3 does not answer.
    """
    source = spec.start_from
    if source is None:
        return spec
    if source.job is not None:
        source = await asyncio.to_thread(_of_job, ctx, source, source.job)
    content = await asyncio.to_thread(_metadata, ctx, source)
    if content is not None:
        _require_parts(source, content)
        await asyncio.to_thread(_require_files, ctx, source, content)
    return spec.model_copy(update={"start_from": source})


async def begun(ctx: Context, job: Job, plan: RestorePlan) -> RestorePlan:
    """Return the plan with the source of a job that has no state of its own, and keep that from the retention.

    Raises:
        LimitError: the source is not there any more: a person decides.
        UnavailableError: S3 does not answer.
    """
    source = job.spec.start_from
    if plan.tier is not None or source is None:
        return plan
    if source.job is not None:
        key = key_of(source)
        if not await asyncio.to_thread(claims.claim, ctx.store, key, job.name, job.epoch):
            raise LimitError(
                f"job {job.name} has no state of its own, and {source.title}, from which it starts, is not in S3 any "
                f"more: submit it with another start_from",
                Missing.STATE,
            )
    reasons = (*plan.reasons, f"starts from {source.title}")
    return plan.model_copy(update={"step": source.first_step, "start_from": source, "reasons": reasons})


async def give_back(ctx: Context, job: Job) -> None:
    """Leave the source of a job that was stopped to the retention; its next start claims it again, if it is there.

    Raises:
        UnavailableError: S3 does not answer.
    """
    source = job.spec.start_from
    if source is not None and source.job is not None:
        await asyncio.to_thread(claims.release, ctx.store, key_of(source), job.name)


def key_of(source: StartFrom) -> str:
    """Return the prefix of the checkpoint of a job that was resolved."""
    assert source.job is not None
    assert isinstance(source.step, int), "resolved at submission"
    return manifests.checkpoint_key(source.job, source.step, source.epoch or 0)


def _of_job(ctx: Context, source: StartFrom, name: str) -> StartFrom:
    found = manifests.list_remote(ctx.store, name)
    if not found:
        raise RefusedError(f"start_from.job = {name}: job {name} has no checkpoint in S3")
    if source.step == "newest":
        found = _trusted(ctx, name, found)
        if not found:
            raise RefusedError(
                f"start_from.step = newest: every checkpoint of job {name} is suspect: name a step "
                f"(`holdfast checkpoints ls {name}`)"
            )
        chosen = found[0]
    else:
        chosen = _named(source, name, found)
    return source.model_copy(update={"step": chosen.step, "epoch": chosen.epoch})


def _trusted(ctx: Context, name: str, found: Sequence[RemoteCheckpoint]) -> list[RemoteCheckpoint]:
    """Return what a recovery of that job would restore, newest first; of an unknown job what is not marked."""
    good = [each for each in found if not each.suspect]
    try:
        epochs, suspicions = ctx.ledger.epochs(name), ctx.ledger.suspicions(name)
    except UnknownError:
        return good
    return [
        each
        for each in lineage.valid(good, epochs)
        if not any(suspicion.covers(each.epoch, each.step) for suspicion in suspicions)
    ]


def _named(source: StartFrom, name: str, found: Sequence[RemoteCheckpoint]) -> RemoteCheckpoint:
    for each in found:  # of several with the step the newest epoch's
        if each.step == source.step and source.epoch in (None, each.epoch):
            return each
    steps = sorted({each.step for each in found})
    of = f" of epoch {source.epoch}" if source.epoch else ""
    raise RefusedError(
        f"start_from.step = {source.step}{of}: job {name} has no such checkpoint in S3; it has steps "
        f"{', '.join(map(str, steps))}"
    )


def _metadata(ctx: Context, source: StartFrom) -> bytes | None:
    """Return the source's metadata; None: it is too large, or its folder is not of this host.

    Raises:
        RefusedError: it is nowhere.
    """
    if source.job is not None:
        return _in_store(ctx.store, key_of(source), source.title)
    if (place := source.store_and_prefix) is not None:
        url, prefix = place
        try:
            store = objects.from_settings(ctx.settings, url)
        except SettingsError as error:
            raise RefusedError(f"start_from.path = {source.path}: {error}") from error
        return _in_store(store, prefix, str(source.path))
    folder = Path(str(source.path))
    if not folder.is_dir() and ctx.settings.driver != "local":
        return None  # the machines may have it
    file = folder / manifests.METADATA
    try:
        return file.read_bytes() if file.stat().st_size <= MOST_BYTES else None
    except OSError as error:
        raise RefusedError(
            f"start_from.path = {folder}: no checkpoint that torch.distributed.checkpoint wrote "
            f"({file.name}: {error.strerror})"
        ) from error


def _in_store(store: ObjectStore, prefix: str, where: str) -> bytes | None:
    key = manifests.object_key(prefix, manifests.METADATA)
    try:
        return store.get(key) if store.head(key).nbytes <= MOST_BYTES else None
    except UnknownError as error:
        raise RefusedError(
            f"start_from: {where}: no checkpoint that torch.distributed.checkpoint wrote ({error})"
        ) from error


def _require_parts(source: StartFrom, content: bytes) -> None:
    try:
        names = names_in(content, f"start_from: {source.title}")
    except CheckpointError as error:
        raise RefusedError(str(error)) from error
    for part in (source.parts or {}).values():
        if not has_part(names, part):
            raise RefusedError(
                f"start_from.parts: {source.title}: no part {part!r} there; it has {', '.join(parts_of(names))}"
            )


def _require_files(ctx: Context, source: StartFrom, content: bytes) -> None:
    """Check that a foreign checkpoint's files are there, and long enough; a job's has digests, checked at its load."""
    if source.path is None:
        return
    needs = files_in(content, f"start_from: {source.title}", (source.parts or {"": ""}).values())
    if (place := source.store_and_prefix) is not None:
        url, prefix = place
        store = objects.from_settings(ctx.settings, url)
        there = {each.key: each.nbytes for each in store.list(f"{prefix.rstrip('/')}/")}
        keys = {name: manifests.object_key(prefix, name) for name in needs}
        # What another checkpoint has of it lies elsewhere.
        found = {
            name: there[key] if key in there else _object_nbytes(store, key) for name, key in keys.items()
        }
    else:
        found = {name: _nbytes(Path(source.path) / name) for name in needs}
    for name, nbytes in sorted(needs.items()):
        has = found[name]
        if has is None:
            raise RefusedError(
                f"start_from.path = {source.path}: its .metadata names {name}, which is not there"
            )
        if has < nbytes:
            raise RefusedError(
                f"start_from.path = {source.path}: {name} was cut off: it has {has} bytes of at least {nbytes}"
            )


def _nbytes(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except (OSError, ValueError):  # a path with a zero is none
        return None


def _object_nbytes(store: ObjectStore, key: str) -> int | None:
    try:
        return store.head(key).nbytes
    except UnknownError:
        return None
