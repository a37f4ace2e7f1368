"""Uploads against a store that breaks at every point: nothing torn ever counts, and afterwards all is well."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import CheckpointError, UnavailableError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.remote import manifests, publish
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.objects import patience
from holdfast.storage.objects import s3 as s3_module
from holdfast.storage.objects.s3 import S3Store
from tests.agent.shards import write_shard
from tests.storage.conftest import ACCESS_KEY, SECRET_KEY
from tests.storage.proxy import Proxy, proxy

MIB = 1 << 20
KEY = manifests.checkpoint_key("toy", 20, 1)
PARTS = 4
_buckets = itertools.count()


@pytest.fixture
def broken(rclone_endpoint: str) -> Iterator[Proxy]:
    with proxy(rclone_endpoint) as made:
        yield made


@pytest.fixture
def direct(rclone_endpoint: str) -> S3Store:
    """The store as it is behind the proxy."""
    made = store_at(rclone_endpoint, f"faults-{next(_buckets)}")
    made.ensure_bucket()
    return made


@pytest.fixture
def through(broken: Proxy, direct: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """The store through the proxy, with small parts."""
    monkeypatch.setattr(s3_module, "PART_BYTES", 5 * MIB)
    return store_at(broken.endpoint, direct.bucket, read_timeout_s=60.0, connect_timeout_s=60.0, attempts=2)


def store_at(endpoint: str, bucket: str, **options: float) -> S3Store:
    return S3Store(endpoint=endpoint, bucket=bucket, access_key=ACCESS_KEY, secret_key=SECRET_KEY, **options)  # type: ignore[arg-type]


def shard(folder: Path, step: int = 20) -> Path:
    payload = bytes([step]) * (PARTS * 5 * MIB)
    return write_shard(folder, 0, step, payload=payload, owned=len(payload))


def put(store: S3Store, path: Path, within_s: float = 60.0) -> publish.Uploaded:
    return publish.put_rank(store, path, KEY, object_nbytes=1 << 40, within_s=within_s)


def finish(store: S3Store) -> RemoteCheckpoint:
    return publish.finish(
        store, key=KEY, job="toy", step=20, epoch=1, world_size=1, metadata=b"places", wait_s=0.0
    )


def assert_nothing_counts(direct: S3Store) -> None:
    """No checkpoint, and none can be completed of what there is."""
    assert manifests.list_remote(direct, "toy") == []
    assert manifests.latest(direct, "toy") is None
    with pytest.raises(CheckpointError, match="never came"):
        finish(direct)


def assert_recovers(store: S3Store, direct: S3Store, path: Path, proxied: Proxy) -> None:
    """The store behaves again: the same upload goes through."""
    proxied.set()
    put(store, path)
    done = finish(store)
    assert manifests.latest(direct, "toy") == done
    header = buffers.read_header(path)
    assert header is not None
    assert direct.get(f"{KEY}__0_0.distcp") == path.read_bytes()[header.payload_offset :]


@pytest.mark.parametrize("fault", ["refuse", "busy", "stall"])
def test_a_store_that_is_away_busy_or_silent(
    through: S3Store,
    direct: S3Store,
    broken: Proxy,
    tmp_path: Path,
    *,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upload fails within its bound, in one clear error; later it goes through."""
    path = shard(tmp_path)
    monkeypatch.setattr(patience, "SLOW_S", 2.0)
    broken.set(**{fault: True})
    limit_s = 1.0 if fault == "stall" else 60.0  # no other one is waited for, but for a host that is busy
    hasty = store_at(
        broken.endpoint, direct.bucket, read_timeout_s=limit_s, connect_timeout_s=limit_s, attempts=2
    )
    with pytest.raises(UnavailableError, match=r"S3 at"):
        put(hasty, path)
    assert broken.hits > 0
    assert_nothing_counts(direct)
    assert_recovers(through, direct, path, broken)


@pytest.mark.parametrize("number", range(1, PARTS + 1))
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "again and again"])
def test_cut_at_every_part(
    through: S3Store, direct: S3Store, broken: Proxy, tmp_path: Path, *, number: int, lasting: bool
) -> None:
    """A connection lost in the middle of a part is made good by itself; if it goes on, nothing is left behind."""
    path = shard(tmp_path)
    wanted = re.compile(rb"PUT .*partNumber=%d&|PUT .*partNumber=%d$" % (number, number))
    broken.set(cut=wanted, cut_at=0 if lasting else 1)
    if lasting:
        with pytest.raises(UnavailableError):
            put(through, path)
        assert direct.unfinished("") == ()
        assert_nothing_counts(direct)
        assert_recovers(through, direct, path, broken)
    else:
        put(through, path)
        assert finish(through) == manifests.latest(direct, "toy")
    assert broken.hits >= 1


STEPS = {
    "begin": rb"POST .*uploads",
    "first part": rb"PUT .*partNumber=1\b",
    "last part": rb"PUT .*partNumber=4\b",
    "complete": rb"POST .*uploadId=",
    "parts file": rb"PUT .*parts/0.json",
    "metadata": rb"PUT .*\.metadata",
    "manifest": rb"PUT .*manifest.json",
}

UPLOADER = """
import sys
from pathlib import Path
from holdfast.storage.checkpoints.remote import publish
from holdfast.storage.objects import s3
s3.PART_BYTES = 5 << 20
endpoint, bucket, access_key, secret_key, path, key = sys.argv[1:]
store = s3.S3Store(endpoint=endpoint, bucket=bucket, access_key=access_key, secret_key=secret_key)
publish.put_rank(store, Path(path), key, object_nbytes=1 << 40, within_s=60.0)
publish.finish(store, key=key, job="toy", step=20, epoch=1, world_size=1, metadata=b"places", wait_s=0.0)
"""


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step_there_is_no_torn_checkpoint(
    direct: S3Store, broken: Proxy, tmp_path: Path, step: str
) -> None:
    """SIGKILL in the middle of each request: without the manifest nothing counts, and the next upload completes it."""
    path = shard(tmp_path)
    at = [broken.endpoint, direct.bucket, ACCESS_KEY, SECRET_KEY]
    command = [sys.executable, "-c", UPLOADER, *at, str(path), KEY]
    running: list[subprocess.Popen[bytes]] = []
    broken.set(
        cut=re.compile(STEPS[step]),
        on_cut=lambda: os.kill(running[0].pid, signal.SIGKILL),
    )
    running.append(subprocess.Popen(command))
    assert running[0].wait(150) == -signal.SIGKILL
    assert broken.hits == 1
    assert manifests.list_remote(direct, "toy") == []
    with pytest.raises(CheckpointError, match="no manifest"):
        manifests.read_manifest(direct, KEY)
    assert_recovers(direct, direct, path, broken)
    # What the killed one left is found by the garbage collection.
    for upload in direct.unfinished("toy/"):
        direct.abort(upload)
    assert direct.unfinished("") == ()


def test_it_is_given_up_in_time(through: S3Store, direct: S3Store, broken: Proxy, tmp_path: Path) -> None:
    """However often single requests succeed: an upload has a bound as a whole."""
    path = shard(tmp_path)
    with pytest.raises(UnavailableError, match="given up"):
        put(through, path, within_s=0.0)
    assert direct.unfinished("") == ()
    assert_recovers(through, direct, path, broken)
