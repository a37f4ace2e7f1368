"""Reads checkpoints that another program wrote with ``torch.distributed.checkpoint`` into an object store.

They have no manifest and no digests: their files are those that lie in the folder, and are read in blocks as ours.
"""

from __future__ import annotations

from holdfast.errors import CheckpointError, HoldfastError, UnknownError
from holdfast.storage.checkpoints.format.foreign_metadata import MAX_BYTES, load_foreign
from holdfast.storage.checkpoints.load.exchange import FAILURES, as_trouble
from holdfast.storage.checkpoints.remote.manifests import METADATA, ForeignFile, Manifest, object_key
from holdfast.storage.checkpoints.remote.remote_reader import FirstReads, RemoteReader
from holdfast.storage.objects.base import ObjectStore


class ForeignReader(RemoteReader):
    """Reads the checkpoint whose ``.metadata`` lies at a prefix. Collective."""

    def __init__(self, store: ObjectStore, prefix: str, where: str) -> None:
        """Prepare for the checkpoint at ``prefix``; ``where`` names it in errors."""
        super().__init__(store, prefix)
        self._where = where

    @property
    def name(self) -> str:
        """For errors."""
        return f"checkpoint {self._where}"

    def _open(self) -> tuple[FirstReads | None, HoldfastError | None]:
        try:
            key = object_key(self._key, METADATA)
            if (nbytes := self._store.head(key).nbytes) > MAX_BYTES:
                raise CheckpointError(
                    f"{self.name}: its .metadata has {nbytes} bytes, more than {MAX_BYTES}: refused."
                )
            metadata = self._store.get(key)
            begin = f"{self._key.rstrip('/')}/"
            found = {
                each.key.removeprefix(begin): ForeignFile(
                    name=each.key.removeprefix(begin), nbytes=each.nbytes
                )
                for each in self._store.list(begin)
            }
            # Read in bounds here, by one rank: what the others are given is harmless.
            places = load_foreign(metadata, self.name).storage_data or {}
            named = {each.relative_path for each in places.values()}
            # What a checkpoint of ours refers to lies with an older one.
            for path in (each for each in named if each.startswith("/")):
                found[path] = ForeignFile(
                    name=path, nbytes=self._store.head(object_key(self._key, path)).nbytes
                )
            if missing := sorted(named - found.keys()):
                raise CheckpointError(f"{self.name}: {missing[0]} is missing.")
        except UnknownError as error:
            return None, CheckpointError(f"{self.name}: {error}")
        except FAILURES as error:  # whatever it is: the other ranks wait for an answer
            return None, as_trouble(error, self.name)
        manifest = Manifest(job="", step=0, epoch=0, world_size=0, saved_at=0, nbytes=0)
        return FirstReads(manifest, metadata, False, {name: found[name] for name in named}), None
