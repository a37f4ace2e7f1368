"""DeepSpeed's ZeRO, the real one: killed and resumed, and compared bit for bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import CheckpointError
from holdfast.integrations.deepspeed import training_state
from holdfast.session.state import StateTree
from holdfast.storage.objects.s3 import S3Store
from tests.integrations.lives import Job, ends_the_same
from tests.session.conftest import MakeAgent
from tests.session.kinds.training import Part

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["1-fp32", "2-bf16"])
def test_a_killed_training_ends_the_same(
    make_agent: MakeAgent, objects: S3Store, tmp_path: Path, kind: str
) -> None:
    """ZeRO 1 and 2, from memory and from S3: weights, master weights, optimizer, schedule and counts."""
    ends_the_same(make_agent, objects, tmp_path, Job("deepspeed_zero", kind, ranks=2, needs="deepspeed"))


def test_its_optimizer_given_directly_is_refused() -> None:
    """Its own state could be saved and not be loaded: before the first step the message names the argument to give."""

    class Zero(Part):
        param_groups: tuple[()] = ()

    class WarmupLR(Part):
        """Of its schedules, which are as others are."""

    for kind in (Zero, WarmupLR):
        kind.__module__ = "deepspeed.runtime.somewhere"
    with pytest.raises(
        CheckpointError, match=r"state\['optimizer'\] is a Zero of DeepSpeed.*training_state\(engine\)"
    ):
        StateTree({"optimizer": Zero()})
    assert StateTree({"schedule": WarmupLR(last=3)}).flat()


def test_other_optimizers_of_it_are_refused() -> None:
    """Those of stage 3 keep their state in another way."""
    engine = SimpleNamespace(module=None, optimizer=object(), lr_scheduler=None)
    with pytest.raises(
        CheckpointError, match="state 'zero': DeepSpeed trains with a object: expected ZeRO of stage 1"
    ):
        training_state(engine)
