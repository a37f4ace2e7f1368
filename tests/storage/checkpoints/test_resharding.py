"""Saved under one parallelism, loaded from S3 under another: real ranks over gloo."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.remote.remote_reader import LoadReport
from holdfast.storage.objects.s3 import S3Store
from tests.e2e.waiting import free_ports
from tests.storage.checkpoints.upload import upload
from tests.storage.conftest import ACCESS_KEY, SECRET_KEY

pytestmark = pytest.mark.e2e

SAVED = ["ddp", "fsdp", "hsdp", "tp", "tp_fsdp", "pp", "flat"]
LOADED = [*SAVED, "pp_moved"]
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["torch", "torch.distributed", "torch._dynamo", "tests.storage.checkpoints.parallelisms"]
)


def ranks(size: int, body: str, **args: Any) -> list[Any]:
    """Run a function of ``parallelisms`` on ``size`` ranks; what each returned."""
    from tests.storage.checkpoints import parallelisms  # noqa: PLC0415  (only rank tests need torch here)

    results = _forks.SimpleQueue()
    port = free_ports(1)
    processes = [
        _forks.Process(target=parallelisms.main, args=((rank, size, port), body, args, results))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        by_rank = dict(results.get() for _ in range(size))
        failed = [each for each in by_rank.values() if isinstance(each, RuntimeError)]
        assert not failed, "\n".join(map(str, failed))
        for process in processes:
            process.join(120)
        return [by_rank[rank] for rank in range(size)]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def bucket(rclone_endpoint: str) -> dict[str, str]:
    """Arguments of a store that has the checkpoints."""
    made = {
        "endpoint": rclone_endpoint,
        "bucket": "resharding",
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
    }
    S3Store(**made).ensure_bucket()
    return made


@pytest.fixture(scope="module")
def saved(bucket: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, RemoteCheckpoint]:
    """A checkpoint of four ranks under each parallelism, in S3."""
    folder = tmp_path_factory.mktemp("saved")
    ranks(4, "save_all", kinds=SAVED, folder=folder)
    store = S3Store(**bucket)
    return {kind: upload(store, folder / kind, step=step, world_size=4) for step, kind in enumerate(SAVED, 1)}


def within_bounds(reports: list[dict[str, LoadReport]]) -> None:
    """Each load read hardly more than the job needs, once, and its ranks shared the work."""
    for name in reports[0]:
        each = [each_report[name] for each_report in reports]
        assert each[0].amplification <= 1.05, f"{name}: {each[0]}"
        assert sum(report.read_nbytes for report in each) == each[0].job_read_nbytes
        assert sum(report.requests for report in each) == each[0].job_requests


# Each loads what every kind saved; a few of these pairs in every run are below, and in load/test_from_ranks.py.
@pytest.mark.thorough
@pytest.mark.parametrize("kind", LOADED)
def test_every_parallelism_loads_what_every_other_saved(
    kind: str, saved: dict[str, RemoteCheckpoint], bucket: dict[str, str]
) -> None:
    """Every element of model and optimizer is where it belongs, and no byte is read twice."""
    pairs = [(checkpoint.key, kind) for checkpoint in saved.values()]
    reports = ranks(4, "load_all", pairs=pairs, store=bucket)
    assert len(reports[0]) == len(SAVED)
    within_bounds(reports)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2, 3])
def test_another_world_size_loads_it(
    size: int, saved: dict[str, RemoteCheckpoint], bucket: dict[str, str]
) -> None:
    """Fewer ranks than saved it."""
    kinds = ["ddp", "fsdp"] if size != 2 else ["ddp", "fsdp", "hsdp", "tp", "pp_moved"]
    pairs = [(saved[name].key, kind) for kind in kinds for name in ("fsdp", "tp_fsdp", "pp")]
    within_bounds(ranks(size, "load_all", pairs=pairs, store=bucket))


# Flat ranges of another number of ranks end elsewhere, also in the middle of a row.
@pytest.mark.parametrize(
    "size", [pytest.param(2, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.thorough), 5]
)
def test_flat_shards_load_at_another_world_size(
    size: int, saved: dict[str, RemoteCheckpoint], bucket: dict[str, str]
) -> None:
    """Ranges of four ranks become other ranges, or whole and sharded tensors; and the other way round."""
    pairs = [(saved["flat"].key, kind) for kind in ("flat", "ddp", "fsdp")]
    pairs += [(saved[name].key, "flat") for name in ("ddp", "tp_fsdp", "pp")]
    within_bounds(ranks(size, "load_all", pairs=pairs, store=bucket))


def test_stock_torch_loads_flat_shards_from_s3(
    saved: dict[str, RemoteCheckpoint], bucket: dict[str, str]
) -> None:
    """Collective ``dcp.load`` by three ranks, with torch's reader for fsspec."""
    options = {
        "key": ACCESS_KEY,
        "secret": SECRET_KEY,
        "client_kwargs": {"endpoint_url": bucket["endpoint"]},
        # rclone sends the checksum of the whole object with every range.
        "config_kwargs": {"response_checksum_validation": "when_required"},
    }
    pairs = [(saved["flat"].key, kind) for kind in ("flat", "ddp", "fsdp")]
    ranks(3, "load_stock", pairs=pairs, url=f"s3://{bucket['bucket']}/", options=options)


@pytest.mark.thorough
def test_replicas_split_their_reads(saved: dict[str, RemoteCheckpoint], bucket: dict[str, str]) -> None:
    """Four data-parallel ranks read a quarter each and get the rest from one another."""
    reports = ranks(4, "load_all", pairs=[(saved["ddp"].key, "ddp")], store=bucket)
    each = [next(iter(report.values())) for report in reports]
    total = each[0].job_read_nbytes
    assert total < 1.05 * saved["ddp"].nbytes
    assert max(report.read_nbytes for report in each) < 0.3 * total
    assert all(report.received_nbytes + report.read_nbytes == total for report in each)


def test_damage_that_one_rank_meets_is_refused_by_all(
    saved: dict[str, RemoteCheckpoint], bucket: dict[str, str]
) -> None:
    """No rank waits for the others, and all name the same file."""
    store, key = S3Store(**bucket), f"{saved['hsdp'].key}__1_0.distcp"
    whole = store.get(key)
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    store.put(key, bytes(damaged))
    try:
        errors = ranks(4, "load_refused", key=saved["hsdp"].key, store=bucket, kind="fsdp")
    finally:
        store.put(key, whole)
    assert [name for name, _ in errors] == ["DamagedError"] * 4
    assert all("__1_0.distcp" in text and "job 'gpt' step" in text for _, text in errors)


# Stock torch saved them, with four ranks, and knows nothing of Holdfast.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "pairs"),
    [
        (1, [(name, "ddp") for name in SAVED]),
        (2, [("tp_fsdp", "fsdp"), ("fsdp", "tp"), ("pp", "fsdp"), ("flat", "tp")]),
        (4, [(name, kind) for name in SAVED for kind in ("fsdp", "tp", "tp_fsdp")]),
    ],
)
def test_a_checkpoint_of_stock_torch_is_where_another_layout_starts(
    size: int, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Every element of model and optimizer is where it belongs, at another number of ranks too."""
    ranks(4, "save_all", kinds=sorted({name for name, _ in pairs}), folder=tmp_path)
    ranks(size, "start_from_all", pairs=pairs, folder=tmp_path)
