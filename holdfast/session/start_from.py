"""The first state of a job that starts from another one's checkpoint, or from one of another program."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointError
from holdfast.models.start_from import StartFrom
from holdfast.session.chosen import Chosen, there
from holdfast.session.recovery import Recovered, load_cost
from holdfast.session.restore import Load, restore_with
from holdfast.storage import objects
from holdfast.storage.checkpoints.format import structure
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.foreign import ForeignReader
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader


def start_from(source: StartFrom, state: Mapping[str, Any], rank: int, store: Mapping[str, str]) -> Recovered:
    """Load the parts of ``state`` that ``source`` names. Collective.

    Args:
        source: the checkpoint and its parts; of a job with its step and epoch.
        state: as given to ``Session.restore``.
        rank: this one.
        store: arguments with which to reach the store that the source is in.

    Raises:
        CheckpointError: the checkpoint or a part is missing, or does not fit; names the path.
        DamagedError: bytes are missing or not those that were saved.
        UnavailableError: S3 does not answer.
    """
    tree, remote = Chosen(state, rank, source), _remote(source, store)
    load: Load = partial(reader.load_remote, remote) if remote else partial(_of_folder, source)
    restore_with(partial(_by_name, load, tree), tree, rank, random=source.parts is None)
    if remote is None:
        return Recovered(None, {"tier": "disk"})
    assert remote.report is not None
    return Recovered(None, {"tier": "s3"} | load_cost(remote.report))


def _remote(source: StartFrom, store: Mapping[str, str]) -> RemoteReader | None:
    if source.job is not None:
        assert isinstance(source.step, int), "resolved at submission"
        key = manifests.checkpoint_key(source.job, source.step, source.epoch or 0)
        return RemoteReader(objects.connect(store), key, job=source.job, step=source.step)
    if (place := source.store_and_prefix) is None:
        return None
    _, prefix = place
    return ForeignReader(objects.connect(store), prefix, str(source.path))


def _of_folder(source: StartFrom, template: reader.Template) -> dict[str, Any]:
    folder = Path(str(source.path))
    if not (folder / manifests.METADATA).is_file():
        raise CheckpointError(
            f"start_from.path = {folder}: it has no {manifests.METADATA} on this machine, expected a folder that "
            "torch.distributed.checkpoint wrote and all machines see"
        )
    return reader.load(folder, template)


def _by_name(load: Load, tree: Chosen, template: reader.Template) -> dict[str, Any]:
    """Load what the template makes; of a checkpoint without trees, by the names that it has."""
    foreign: dict[str, Any] = {}

    def asked(metadata: Metadata) -> dict[str, Any]:
        wanted = template(metadata)
        if structure.saved_ranks(metadata.state_dict_metadata):
            return wanted
        foreign.update(wanted)
        return tree.found_in(metadata, wanted)

    loaded = load(asked)
    tree.require_grouped(loaded)
    return {
        name: loaded.get(there(name), fresh) for name, fresh in foreign.items() if name not in tree.stateless
    } or loaded
