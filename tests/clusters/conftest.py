"""Real clusters for tests; one of each for the whole run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import slurm

NODES = 6


@pytest.fixture(scope="package")
def slurm_cluster() -> Iterator[slurm.Cluster]:
    """Six nodes. Short path: munge's socket has to fit into 108 bytes."""
    if absent := slurm.missing():
        pytest.skip(absent)
    root = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
    cluster = slurm.Cluster(root, NODES)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)
