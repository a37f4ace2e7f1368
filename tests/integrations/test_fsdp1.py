"""FullyShardedDataParallel (FSDP1): killed and resumed, and compared bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.storage.objects.s3 import S3Store
from tests.integrations.lives import Job, ends_the_same
from tests.session.conftest import MakeAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.mark.thorough
@pytest.mark.parametrize("parameters", ["orig", "flat"])
def test_a_killed_training_ends_the_same(
    make_agent: MakeAgent, objects: S3Store, tmp_path: Path, parameters: str
) -> None:
    """From memory and from S3, with original parameters and with flat ones."""
    ends_the_same(make_agent, objects, tmp_path, Job("fsdp1", parameters, ranks=2))
