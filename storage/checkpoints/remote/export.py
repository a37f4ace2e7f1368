"""Takes a checkpoint out of the object store, as a plain directory that needs nothing of Holdfast."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from holdfast import durable
from holdfast.errors import CheckpointError, DamagedError, RefusedError, SettingsError
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.manifests import BOXES, METADATA, RemoteFile, object_key
from holdfast.storage.objects import ObjectStore

_AT_ONCE = 4
_CHUNK_BYTES = 1 << 20


def to_directory(store: ObjectStore, key: str, target: Path) -> int:
    """Download a checkpoint as a stock ``torch.distributed.checkpoint`` directory and return its size in bytes.

    Every file is verified; those that the checkpoint refers to lie beside its own afterwards. ``target`` appears
    only when it is complete.

    Raises:
        RefusedError: ``target`` exists.
        DamagedError: a file does not match its manifest; the message names it.
        CheckpointError: there is no such checkpoint.
        UnavailableError: the store does not answer.
    """
    manifest = manifests.read_manifest(store, key)

    def fill(folder: Path) -> int:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="export") as pool:
            list(pool.map(lambda file: _fetch(store, key, file, folder), manifest.files))
        compact = (folder / BOXES).read_bytes() if (folder / BOXES).exists() else b""
        (folder / BOXES).unlink(missing_ok=True)  # of use beside the manifest alone
        if any(file.name != file.plain_name for file in manifest.files):
            from holdfast.storage.checkpoints.format import pieces  # noqa: PLC0415  (torch)

            if compact:
                names = [file.plain_name for file in manifests.data_files(manifest)]
                with (folder / METADATA).open("wb") as out:
                    pieces.write_stock(compact, names, out)
            else:
                (folder / METADATA).write_bytes(pieces.localise((folder / METADATA).read_bytes()))
        return sum(path.stat().st_size for path in folder.iterdir())

    return _whole(target, fill)


def to_safetensors(store: ObjectStore, key: str, target: Path, part: str = "model") -> int:
    """Write the tensors under ``part`` of the state as safetensors, by torch's own writer; how many they are.

    Names are those inside the part: ``model.layers.0.weight`` becomes ``layers.0.weight``. The tensors pass
    through this process's memory.

    Raises:
        RefusedError: ``target`` exists.
        SettingsError: the checkpoint has no tensors under ``part``; names the parts that it has.
        CheckpointError: there is no such checkpoint, it is damaged, or safetensors is not installed.
        UnavailableError: the store does not answer.
    """
    try:
        import safetensors  # noqa: F401, PLC0415  (torch imports it only while it writes)
        import torch  # noqa: PLC0415
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # noqa: PLC0415
        from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata  # noqa: PLC0415
        from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

        from holdfast.storage.checkpoints.load import reader  # noqa: PLC0415
        from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"export to safetensors needs {error.name}: pip install 'holdfast[export]'"
        ) from error

    def template(metadata: Metadata) -> dict[str, object]:
        tensors = {
            name: torch.empty(known.size, dtype=known.properties.dtype, device="cpu")
            for name, known in metadata.state_dict_metadata.items()
            if isinstance(known, TensorStorageMetadata) and name.startswith(f"{part}.")
        }
        if not tensors:
            parts = sorted({name.partition(".")[0] for name in metadata.state_dict_metadata})
            raise SettingsError(
                f"part = {part!r}: it has no tensors; the checkpoint's parts: {', '.join(parts)}"
            )
        return tensors  # type: ignore[return-value]

    def fill(folder: Path) -> int:
        loaded = reader.load_remote(RemoteReader(store, key, alone=True), template)
        named = {name.removeprefix(f"{part}."): each for name, each in loaded.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # One file, named as Hugging Face's loaders expect it.
            writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=dict.fromkeys(named, 1))
            save(named, storage_writer=writer, no_dist=True)
        return len(named)

    return _whole(target, fill)


def _fetch(store: ObjectStore, key: str, file: RemoteFile, folder: Path) -> None:
    path, digest = folder / file.plain_name, xxhash.xxh3_128()
    nbytes = store.fetch(object_key(key, file.name), path)
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    if (nbytes, digest.hexdigest()) != (file.nbytes, file.digest):
        raise DamagedError(
            f"checkpoint {key}: {file.name} has {nbytes} bytes, digest {digest.hexdigest()}; its manifest says "
            f"{file.nbytes}, {file.digest}. Export an older one."
        )


def _whole(target: Path, fill: Callable[[Path], int]) -> int:
    """Have ``fill`` fill a new folder that becomes ``target`` when it is done."""
    if target.exists():
        raise RefusedError(f"{target} exists: name a folder that does not, or remove it first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        folder = Path(scratch) / "content"
        folder.mkdir()
        result = fill(folder)
        shutil.copymode(target.parent, folder)
        durable.replace(folder, target, "export")
    return result
