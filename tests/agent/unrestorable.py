"""Damage in meaning, done underneath a training script: it goes on saving, and its shards would not come back."""

DAMAGE = '''
import os
from pathlib import Path
from holdfast.storage.checkpoints.format import layout as _layout
from holdfast.storage.checkpoints.save import buffers as _buffers
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata as _load_metadata
from torch.distributed.checkpoint.metadata import BytesStorageMetadata as _Object, MetadataIndex as _Index

_commit = _buffers.commit

class _Bomb:
    def __reduce__(self):
        return os.getpid, ()

def _damaged_commit(buf, header):
    """Put an object that no restore trusts in the place of the first one; the digest is right."""
    if (Path(os.environ["HOLDFAST_MACHINE_DIR"]) / f"fixed-{header.job}").exists():
        return _commit(buf, header)
    metadata = _load_metadata(buf[header.meta_offset:header.meta_offset + header.meta_nbytes])
    name = min(n for n, known in metadata.state_dict_metadata.items() if isinstance(known, _Object))
    place = metadata.storage_data[_Index(name)]
    start = header.payload_offset + place.offset
    buf[start:start + place.length] = _layout.dump_object(_Bomb()).ljust(place.length, b"\\0")
    return _commit(buf, header.model_copy(update={"digest": _buffers.digest_of(buf, header)}))

_buffers.commit = _damaged_commit
'''
