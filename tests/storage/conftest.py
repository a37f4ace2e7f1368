"""Real servers for the storage tests, each on a free loopback port."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.storage.objects.s3 import S3Store
from tests.storage import servers

ACCESS_KEY, SECRET_KEY = "tester", "not-a-secret"

MakeStore = Callable[..., S3Store]

_buckets = itertools.count(1)


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with servers.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def rclone_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.rclone(tmp_path_factory.mktemp("s3"), ACCESS_KEY, SECRET_KEY) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A temporary PostgreSQL cluster; skips without its binaries or driver."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if (binaries := servers.postgres_binaries()) is None:
        pytest.skip("PostgreSQL is not installed")
    with servers.postgres(binaries) as url:
        yield url


def _store(endpoint: str, **options: object) -> S3Store:
    given = {"bucket": f"bucket-{next(_buckets)}", "access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    return S3Store(endpoint=endpoint, **{**given, **options})  # type: ignore[arg-type]


@pytest.fixture
def objects(moto_endpoint: str) -> S3Store:
    """A store with an empty bucket, for tests of what lies above it."""
    store = _store(moto_endpoint)
    store.ensure_bucket()
    return store


@pytest.fixture(params=["moto", "rclone"])
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Makes stores at each S3 implementation, each with a bucket of its own that does not exist yet."""
    endpoint: str = request.getfixturevalue(f"{request.param}_endpoint")
    return lambda **options: _store(endpoint, **options)


@pytest.fixture
def store(make_store: MakeStore) -> S3Store:
    """A store with an empty bucket, at each S3 implementation."""
    made = make_store()
    made.ensure_bucket()
    return made


@pytest.fixture
def git_repository(tmp_path: Path) -> Path:
    """An empty git repository."""
    root = tmp_path / "repository"
    root.mkdir()
    subprocess.run(["git", "init", "-q", root], check=True)
    return root
