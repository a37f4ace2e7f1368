"""Loads a checkpoint in S3 with stock torch and fsspec: ``stock_s3_load.py URL ENDPOINT KEY SECRET OUT``. No test."""

import sys
import warnings

import torch
from torch.distributed.checkpoint import load
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

url, endpoint, key, secret, out = sys.argv[1:]
warnings.simplefilter("ignore")
reader = FsspecReader(
    url,
    key=key,
    secret=secret,
    client_kwargs={"endpoint_url": endpoint},
    # rclone sends the checksum of the whole object with every range.
    config_kwargs={"response_checksum_validation": "when_required"},
)
known = reader.read_metadata().state_dict_metadata
state = {
    name: torch.empty(each.size, dtype=each.properties.dtype)
    for name, each in known.items()
    if isinstance(each, TensorStorageMetadata)
}
state["loader.position"] = None
load(state, storage_reader=reader, no_dist=True)
torch.save(state, out)
assert not any(name.startswith("holdfast") for name in sys.modules)
