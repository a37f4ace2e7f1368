"""``checkpoints``: what lies in S3 for a job, whether it is whole, and how to take it out.

These commands ask S3 itself, so they work when the control plane is gone; what it knows is added when it answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import context
from holdfast.cli.arguments import JobName
from holdfast.cli.output import AsJson, ago, print_json, print_table, report, say
from holdfast.errors import HoldfastError, SettingsError, UnavailableError, UnknownError
from holdfast.models.checkpoint import RemoteCheckpoint, RestorePlan, Retention

if TYPE_CHECKING:
    from holdfast.storage.objects import ObjectStore

app = typer.Typer(
    no_args_is_help=True, help="A job's checkpoints in S3: list, show, verify, export, prune, pin."
)

Step = Annotated[int | None, typer.Argument(help="Step; the newest one that may be restored when left out.")]


class CheckpointStanding(StrEnum):
    """Standing of a checkpoint: whether a restore may take it, and whether it is kept."""

    GOOD = "good"
    """A restore may take it."""
    SUSPECT = "suspect"
    PINNED = "pinned"


@app.command("list", hidden=True)
@app.command()
def ls(
    job: JobName,
    state_: Annotated[
        CheckpointStanding | None,
        typer.Option(
            "--state", help="Only those that a restore may take, that it may not, or that are pinned."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a job's checkpoints in S3, newest first; suspect and pinned ones are marked."""
    store = _store()
    every = [(each, _pinned(store, each)) for each in _all(store, job)]
    found = [(each, pinned) for each, pinned in every if state_ in {None, *_standings(each, pinned)}]
    if as_json:
        print_json([each.model_dump(mode="json") | {"pinned": pinned} for each, pinned in found])
        return
    rows = [
        (
            each.step,
            each.epoch,
            each.world_size,
            _size(each.nbytes),
            ago(each.saved_at),
            ", ".join(_standings(each, pinned)),
            each.key,
            each.suspect_reason,
        )
        for each, pinned in found
    ]
    columns = ("STEP", "EPOCH", "RANKS", "SIZE", "SAVED", "STATE", "KEY", "SUSPECT BECAUSE")
    print_table("Checkpoints", columns, rows, "none like that" if every else "none yet")
    for line in _unsaved(job):
        say(line)


@app.command()
def show(job: JobName, step: Step = None, as_json: AsJson = False) -> None:
    """Show one checkpoint: its files, and from where the job would be restored now, and why."""
    store = _store()
    chosen = _one(store, job, step)
    from holdfast.storage.checkpoints.remote import manifests  # noqa: PLC0415  (pulls in more than `--help` should wait for)

    files = manifests.read_manifest(store, chosen.key).files
    referred = [file for file in files if file.name.startswith("/")]
    facts: dict[str, Any] = chosen.model_dump(mode="json") | {
        "pinned": _pinned(store, chosen),
        "files": len(files),
        "files_of_older_checkpoints": len(referred),
        "nbytes_of_older_checkpoints": sum(file.nbytes for file in referred),
        "restore": _restore(store, job),
    }
    if as_json:
        print_json(facts)
        return
    say(
        f"step {chosen.step} of epoch {chosen.epoch}, saved by {chosen.world_size} ranks {ago(chosen.saved_at)}"
    )
    say(f"{context.settings().store_url}/{chosen.key}")
    say(
        f"{_size(chosen.nbytes)} in {len(files)} files, {_size(facts['nbytes_of_older_checkpoints'])} of it in "
        f"{len(referred)} files of older checkpoints that did not change"
    )
    if facts["pinned"]:
        say("pinned: kept whatever the retention says")
    if chosen.suspect:
        say(f"suspect, not restored: {chosen.suspect_reason}")
    say("")
    say("If the job were restored now:")
    for line in facts["restore"]:
        say(f"  {line}")
    for line in _unsaved(job):
        say(line)


@app.command()
def verify(
    job: JobName,
    step: Step = None,
    every: Annotated[bool, typer.Option("--all", help="Every checkpoint of the job.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a checkpoint from end to end and compare every file with its digest; status 1 when one is damaged."""
    if every and step is not None:
        raise SettingsError(f"step = {step} and --all: give one of them.")
    from holdfast.storage.checkpoints.remote import verify as checks  # noqa: PLC0415

    store = _store()
    chosen = _all(store, job) if every else [_one(store, job, step)]
    found = [(each, checks.verify(store, each.key)) for each in chosen]
    damaged = [(each, file) for each, files in found for file in files if file.problem]
    if as_json:
        print_json(
            [
                {
                    "step": each.step,
                    "epoch": each.epoch,
                    "key": each.key,
                    "files": [f.model_dump() for f in files],
                }
                for each, files in found
            ]
        )
    else:
        for each, files in found:
            bad = sum(bool(file.problem) for file in files)
            size = _size(sum(file.nbytes for file in files))
            say(f"step {each.step}: {len(files)} files, {size}: {f'{bad} damaged' if bad else 'whole'}")
        for each, file in damaged:
            say(f"  job {job} step {each.step} in S3: {file.name}: {file.problem}")
    if damaged:
        raise typer.Exit(1)


@app.command()
def export(
    job: JobName,
    target: Annotated[Path, typer.Argument(help="Folder to make; must not exist.")],
    *,
    step: Annotated[int | None, typer.Option(help="Step; default: the newest that may be restored.")] = None,
    form: Annotated[
        str, typer.Option("--format", help="dcp: a torch.distributed.checkpoint directory; safetensors.")
    ] = "dcp",
    part: Annotated[
        str, typer.Option(help="safetensors: the part of the state to write, as the script named it.")
    ] = "model",
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint to a folder that needs nothing of Holdfast; every byte is verified on the way."""
    if form not in {"dcp", "safetensors"}:
        raise SettingsError(f"--format {form!r}: expected dcp or safetensors.")
    from holdfast.storage.checkpoints.remote import export as exports  # noqa: PLC0415

    store = _store()
    chosen = _one(store, job, step)
    if form == "dcp":
        nbytes = exports.to_directory(store, chosen.key, target)
        facts, what = (
            {"nbytes": nbytes},
            f"{_size(nbytes)} in {target}; torch.distributed.checkpoint.load reads it",
        )
    else:
        count = exports.to_safetensors(store, chosen.key, target, part)
        facts, what = {"tensors": count}, f"{count} tensors in {target}"
    line = f"step {chosen.step} of {job}: {what}"
    report(as_json, line, job=job, step=chosen.step, format=form, target=target, **facts)


@app.command()
def prune(
    job: JobName,
    *,
    keep_last: Annotated[int | None, typer.Option(min=1, help="Newest checkpoints to keep.")] = None,
    keep_every: Annotated[int | None, typer.Option(min=0, help="Also those of every so many steps.")] = None,
    grace: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seconds; younger things stay, an upload may be under way (default: longer than any may take).",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete checkpoints that the retention does not keep, and what broken uploads left.

    Files that a kept checkpoint refers to stay, whichever checkpoint they were uploaded for.
    """
    from holdfast.policies.restore import retention  # noqa: PLC0415
    from holdfast.storage.checkpoints.remote import garbage  # noqa: PLC0415

    store = _store()
    _all(store, job)
    rules = _retention(job, keep_last, keep_every, deletes=yes)
    known = context.settings()
    longest_s = retention.upload_grace_s(known.s3_upload_s, known.s3_parts_s)
    grace_s = longest_s if grace is None else grace
    done = garbage.collect(store, job, partial(retention.keep, rules=rules), grace_s=grace_s, dry_run=not yes)
    if as_json:
        print_json(done.model_dump(mode="json") | {"deleted": yes, "rules": rules.model_dump(mode="json")})
        return
    rows = [(key, "keep", reason) for key, reason in sorted(done.kept.items(), reverse=True)]
    rows += [(key, "delete" if yes else "would delete", "") for key in sorted(done.dropped, reverse=True)]
    print_table(
        f"Retention: last {rules.keep_last}, every {rules.keep_every}", ("KEY", "", "WHY"), rows, "nothing"
    )
    verb = "deleted" if yes else "would delete"
    say(f"{verb} {done.objects} objects, {_size(done.nbytes)}; {done.uploads} unfinished uploads")
    if not yes and (done.objects or done.uploads):
        say("add --yes to delete them")


@app.command()
def pin(
    job: JobName,
    step: Annotated[int, typer.Argument(help="Step of the checkpoint.")],
    reason: Annotated[str, typer.Option(help="Why; is kept beside it.")] = "manual",
    remove: Annotated[bool, typer.Option("--remove", help="Leave it to the retention again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint regardless of the retention rules, or put it under these rules again."""
    from holdfast.storage.checkpoints.remote import manifests  # noqa: PLC0415

    store = _store()
    chosen = _one(store, job, step)
    if remove:
        manifests.unpin(store, chosen)
    else:
        manifests.pin(store, chosen, reason)
    line = f"step {step} of {job}: {'left to the retention' if remove else 'pinned'}"
    report(as_json, line, job=job, step=step, key=chosen.key, pinned=not remove)


def _store() -> ObjectStore:
    from holdfast.storage import objects  # noqa: PLC0415  (boto3 takes 0.2 s to import)

    return objects.from_settings(context.settings())


def _all(store: ObjectStore, job: str) -> list[RemoteCheckpoint]:
    """Return the job's checkpoints, newest first.

    Raises:
        UnknownError: neither S3 nor the gateway knows the job.
    """
    from holdfast.storage.checkpoints.remote import manifests  # noqa: PLC0415

    found = manifests.list_remote(store, job)
    if not found and not _gateway_knows(job):
        known = sorted(
            {each.rstrip("/") for each in store.folders("") if any(store.folders(f"{each}checkpoints/"))}
        )
        raise UnknownError(
            f"no job {job!r}: nothing of it lies in {context.settings().store_url}. Jobs that have "
            f"checkpoints there: {', '.join(known) or 'none'}."
        )
    return found


def _one(store: ObjectStore, job: str, step: int | None) -> RemoteCheckpoint:
    """Return the checkpoint of ``step``, of the newest epoch that has one; without a step the newest good one.

    Raises:
        UnknownError: there is none.
    """
    found = _all(store, job)
    fitting = [each for each in found if (not each.suspect if step is None else each.step == step)]
    if not fitting:
        listed = ", ".join(str(each.step) for each in found[:10]) + (", ..." if len(found) > 10 else "")
        wanted = "that may be restored" if step is None else f"at step {step}"
        raise UnknownError(f"job {job!r} has no checkpoint {wanted} in S3. Steps there: {listed or 'none'}.")
    return max(fitting, key=lambda each: (each.step, each.epoch))


def _pinned(store: ObjectStore, checkpoint: RemoteCheckpoint) -> bool:
    from holdfast.storage.checkpoints.remote import manifests  # noqa: PLC0415

    return manifests.is_pinned(store, checkpoint.key)


def _standings(checkpoint: RemoteCheckpoint, pinned: bool) -> list[CheckpointStanding]:
    standing = CheckpointStanding.SUSPECT if checkpoint.suspect else CheckpointStanding.GOOD
    return [standing, CheckpointStanding.PINNED] if pinned else [standing]


def _gateway_knows(job: str) -> bool:
    with _no_control_plane(), context.gateway() as gateway:
        gateway.job(job)
        return True
    return False


def _unsaved(job: str) -> Sequence[str]:
    """Return where the job's saves fail at present, as far as the control plane reports it."""
    with _no_control_plane(), context.gateway() as gateway:
        (found,) = [each for each in gateway.status()["jobs"] if each["name"] == job] or [{}]
        return [f"{each['told']} (since {ago(each['since'])})" for each in found.get("unsaved", ())]
    return ()


@contextlib.contextmanager
def _no_control_plane() -> Iterator[None]:
    """Leave the block out when the gateway does not answer or does not know."""
    with contextlib.suppress(HoldfastError):
        yield


def _retention(job: str, keep_last: int | None, keep_every: int | None, *, deletes: bool) -> Retention:
    """Return the job's own rules, where they can be asked for, with what the command line changes.

    Raises:
        UnavailableError: something is to be deleted by rules that are not known.
    """
    changed = {"keep_last": keep_last, "keep_every": keep_every}
    given = {name: value for name, value in changed.items() if value is not None}
    try:
        with context.gateway() as gateway:
            rules = gateway.job(job).spec.checkpoint.retention
    except HoldfastError as error:
        if deletes and len(given) < len(changed):
            raise UnavailableError(
                f"the job's own rules are not known ({error}), and they may keep more than others: nothing was "
                "deleted. Give both --keep-last and --keep-every (0: none), or wait until the gateway answers."
            ) from None
        rules = Retention()
    return rules.model_copy(update=given)


def _restore(store: ObjectStore, job: str) -> Sequence[str]:
    """Return the restore plan as of now in words; by S3 alone when the machines could not be asked."""
    from holdfast.cli import restore_now  # noqa: PLC0415
    from holdfast.policies.restore import restore_plan  # noqa: PLC0415

    try:
        plan: RestorePlan = restore_now.plan(store, job)
    except (UnavailableError, UnknownError) as error:
        newest = next((each for each in _all(store, job) if not each.suspect), None)
        where = f"step {newest.step} from S3" if newest else "from scratch"
        return (f"{where}, as far as S3 shows; what machines hold in memory is not known: {error}",)
    return (*plan.reasons, *restore_plan.explain(plan))


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
