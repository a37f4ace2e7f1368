"""Optimizers of other libraries, the real ones: killed and resumed, and compared bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.storage.objects.s3 import S3Store
from tests.integrations.lives import Job, ends_the_same
from tests.session.conftest import MakeAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]
KINDS = {
    "torchao": "torchao-8bit,torchao-4bit,torchao-fp8,torchao-bf16",
    "torchao.float8": "float8,float8-all-gather",
    "bitsandbytes": "bitsandbytes-adamw,bitsandbytes-lion",
    "galore_torch": "galore",
    "torch": "lbfgs,sparse-adam",
}


THOROUGH = ("torch", "torchao", "torchao.float8")
"""Slow to begin; their kinds of state are in tests/session/kinds, too."""


@pytest.mark.parametrize(
    "library",
    [pytest.param(each, marks=[pytest.mark.thorough] if each in THOROUGH else []) for each in KINDS],
)
def test_a_killed_training_ends_the_same(
    make_agent: MakeAgent, objects: S3Store, tmp_path: Path, library: str
) -> None:
    """From memory and from S3: weights, optimizer state (types, shapes, inner tensors) and data."""
    needs = library.split(".", maxsplit=1)[0]
    ends_the_same(make_agent, objects, tmp_path, Job("optimizers", KINDS[library], needs=needs))
