"""``torchdata.StatefulDataLoader`` over a dataset that packs tokens: killed and resumed, and compared bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.storage.objects.s3 import S3Store
from tests.integrations.lives import Job, ends_the_same
from tests.session.conftest import MakeAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 1])
def test_a_buffer_that_changes_length_comes_back(
    make_agent: MakeAgent, objects: S3Store, tmp_path: Path, workers: int
) -> None:
    """From memory and from S3: the rows after it are those of a run that was not killed."""
    ends_the_same(make_agent, objects, tmp_path, Job("packing", str(workers)))
