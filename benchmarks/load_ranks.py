"""One rank that loads a checkpoint from S3, by one of the ways that are compared: ``load_ranks.py ORDER RANK``.

Prints one line of JSON: seconds from before the load to after it, on this rank, with what it knows of its cost.
Ways: ``holdfast``, ``fsspec`` (stock ``dcp.load``), ``s3torchconnector`` (``dcp.load``), and ``save``, which writes the
checkpoint to a folder with stock ``dcp.save``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

TENSORS = 32


def main() -> None:
    """Load, check, and say how long it took."""
    order, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"])}
    os.environ |= {"AWS_ACCESS_KEY_ID": order["access_key"], "AWS_SECRET_ACCESS_KEY": order["secret_key"]}
    os.environ["AWS_ENDPOINT_URL"] = order.get("endpoint", "")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=order["ranks"])
    state = build(order["layout"], order["nbytes"], fill=order["way"] == "save")
    if order["way"] == "save":
        dcp.save(state, checkpoint_id=order["folder"])
        return
    load = WAYS[order["way"]]
    # What a process can do before it knows that it will load, as Holdfast's spare processes do: not timed, for no way.
    for name in IMPORTS[order["way"]]:
        importlib.import_module(name)
    if order["way"] == "fsspec":
        _s3fs(order).connect()
    dist.barrier()
    begun = time.perf_counter()
    cost = load(order, state)
    dist.barrier()
    seconds = time.perf_counter() - begun
    print(json.dumps({"s": seconds, "sum": digest(state), **cost}), flush=True)
    dist.destroy_process_group()


def build(layout: str, nbytes: int, *, fill: bool) -> dict[str, torch.Tensor]:
    """Tensors of ``nbytes`` in all: every rank has all of them (``replicated``), or its rows (``sharded``)."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = nbytes // TENSORS // 4 // 1024
    state = {}
    for number in range(TENSORS):
        whole = torch.arange(rows * 1024, dtype=torch.float32) + number if fill else torch.zeros(rows * 1024)
        local = whole.view(rows, 1024)
        if layout == "sharded":
            state[f"layer{number}"] = DTensor.from_local(
                local.chunk(dist.get_world_size())[dist.get_rank()].clone(), mesh, [Shard(0)], run_check=False
            )
        else:
            state[f"layer{number}"] = DTensor.from_local(local, mesh, [Replicate()], run_check=False)
    return state


def digest(state: dict[str, Any]) -> str:
    """Of this rank's values, to see that all ways load the same."""
    found = hashlib.sha256()
    for name in sorted(state):
        found.update(memoryview(state[name].to_local()[::97, 0].contiguous().numpy()))
    return found.hexdigest()


def holdfast(order: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Ours."""
    from holdfast.storage import objects  # noqa: PLC0415  (each way has its own)
    from holdfast.storage.checkpoints.load import reader  # noqa: PLC0415
    from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader  # noqa: PLC0415

    names = ("endpoint", "bucket", "access_key", "secret_key")
    source = RemoteReader(objects.connect({name: order[name] for name in names}), order["key"])
    reader.load_remote(source, lambda _: state)
    assert source.report is not None
    return source.report.model_dump(mode="json") | {"amplification": source.report.amplification}


def fsspec(order: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Stock torch through s3fs."""
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader  # noqa: PLC0415

    source = FsspecReader(f"s3://{order['bucket']}/{order['key']}", **_options(order))
    dcp.load(state, storage_reader=source)
    return {}


def _s3fs(order: dict[str, Any]) -> Any:
    """The file system that the reader will use: there is one for the same options."""
    import fsspec as registry  # noqa: PLC0415

    return registry.filesystem("s3", **_options(order))


def _options(order: dict[str, Any]) -> dict[str, Any]:
    return {
        "key": order["access_key"],
        "secret": order["secret_key"],
        "client_kwargs": {"endpoint_url": order["endpoint"]},
        "config_kwargs": {"response_checksum_validation": "when_required"},
    }


def s3torchconnector(order: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Stock torch through Amazon's connector."""
    from s3torchconnector import S3ClientConfig  # noqa: PLC0415
    from s3torchconnector.dcp import S3StorageReader  # noqa: PLC0415

    source = S3StorageReader(
        region="us-east-1",
        path=f"s3://{order['bucket']}/{order['key'].rstrip('/')}",
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    dcp.load(state, storage_reader=source)
    return {}


IMPORTS = {
    "holdfast": ("holdfast.storage.objects.ready", "holdfast.storage.checkpoints.remote.remote_reader"),
    "fsspec": ("torch.distributed.checkpoint._fsspec_filesystem", "s3fs"),
    "s3torchconnector": ("s3torchconnector.dcp",),
}
WAYS = {"holdfast": holdfast, "fsspec": fsspec, "s3torchconnector": s3torchconnector}

if __name__ == "__main__":
    main()
