"""The Hugging Face Trainer, the real one, interrupted and compared bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast import Session
from holdfast.errors import CheckpointError
from tests.session.conftest import MakeAgent
from tests.session.harness import FakeAgent
from tests.storage.checkpoints.publish import publish

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).parent / "scripts" / "hf_trainer.py"


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path)
    return found


def _from(agent: FakeAgent, step: int) -> Callable[[int], tuple[int, Path]] | None:
    return (lambda rank: (step, agent.shard(rank, step))) if step else None


@pytest.mark.thorough
@pytest.mark.timeout(1000)
def test_an_interrupted_training_ends_with_the_same_weights(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Killed within the first epoch, and at the end of the second: order of data, dropout and schedule go on."""
    whole, broken = make_agent(1), make_agent(1)
    whole.start(SCRIPT, [tmp_path / "whole.pt", tmp_path])
    assert whole.join() == [0], whole.output()
    assert [each["step"] for each in whole.of("step")] == list(range(1, 21))
    restored = 0
    for upto in (3, 16):
        # A second per step: it does not end before it is killed, however late that is.
        broken.start(SCRIPT, [tmp_path / "broken.pt", tmp_path, 1], _from(broken, restored))
        broken.wait_for(lambda upto=upto: any(each["step"] >= upto for each in broken.of("saved")))
        broken.kill()
        restored = broken.common_step()
        assert upto <= restored <= 20
    broken.start(SCRIPT, [tmp_path / "broken.pt", tmp_path], _from(broken, restored))
    assert broken.join() == [0], broken.output()
    expected, found = weights(tmp_path / "whole.pt"), weights(tmp_path / "broken.pt")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.thorough
@pytest.mark.timeout(1000)
def test_another_number_of_ranks_goes_on_with_the_same_samples(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Two ranks with batches of four are killed; one with batches of four is refused, one with eight goes on.

    Without dropout: two ranks draw other masks than one.
    """
    two, one = make_agent(2), make_agent(1)
    apart = {"LOCAL_RANK": "0"}  # by which the Trainer knows that there are several
    two.start(SCRIPT, [tmp_path / "two.pt", tmp_path, 1, 4, 0], **apart)
    two.wait_for(lambda: two.of("saved", 0) and two.of("saved", 1) and two.common_step() >= 3)
    two.kill()
    step = two.common_step()
    folder = publish(two.shards, step, tmp_path / "s3")
    one.start(SCRIPT, [tmp_path / "one.pt", tmp_path], lambda _: (step, folder))
    assert one.join() != [0]
    assert "steps were of 8 samples each, and are of 4 now" in one.output()
    one.start(SCRIPT, [tmp_path / "one.pt", tmp_path, 0, 8, 0], lambda _: (step, folder))
    assert one.join() == [0], one.output()
    whole = make_agent(1)
    whole.start(SCRIPT, [tmp_path / "whole.pt", tmp_path, 0, 8, 0])
    assert whole.join() == [0], whole.output()
    expected, found = weights(tmp_path / "whole.pt"), weights(tmp_path / "one.pt")
    assert all(torch.allclose(expected[name], found[name], atol=1e-4) for name in expected)


@pytest.mark.thorough
def test_it_trains_under_plain_torchrun(tmp_path: Path) -> None:
    """Two ranks, no agent: the callback does nothing."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(SCRIPT), str(tmp_path / "end.pt"), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path / "end.pt")


def test_steps_of_another_size_are_refused(tmp_path: Path) -> None:
    """At another number of ranks, say: the trainer counts its position in steps."""
    from transformers import TrainerState, TrainingArguments  # noqa: PLC0415  (seconds to import)

    from holdfast.integrations.transformers import _Progress  # noqa: PLC0415

    def progress(batch: int, accumulated: int) -> _Progress:
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            report_to=[],
            use_cpu=True,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulated,
        )
        return _Progress(TrainerState(global_step=3), arguments)

    saved = progress(4, 2).state_dict()
    progress(8, 1).load_state_dict(saved)
    progress(8, 1).load_state_dict({name: each for name, each in saved.items() if name != "samples_per_step"})
    with pytest.raises(
        CheckpointError, match=r"steps were of 8 samples each, and are of 4 now .*product is 8"
    ):
        progress(4, 1).load_state_dict(saved)


def test_an_evaluation_is_declared_once_and_ends(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Its batches are no steps: a long one would be taken for a hang. The Trainer reports only its end."""
    from transformers import TrainerControl, TrainerState, TrainingArguments  # noqa: PLC0415  (seconds to import)

    from holdfast.integrations.transformers import HoldfastCallback  # noqa: PLC0415

    agent = make_agent(1)
    agent.epoch += 1
    callback = HoldfastCallback(Session(agent.environ(0, None)))
    now = (
        TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True),
        TrainerState(),
        TrainerControl(),
    )
    for _ in range(2):
        for _ in range(3):
            callback.on_prediction_step(*now)
        callback.on_evaluate(*now, metrics={})
    callback.on_prediction_step(*now)
    callback.on_predict(*now, metrics={})
    callback.on_evaluate(*now, metrics={})  # one without a batch
    agent.wait_for(lambda: len(agent.of("activity")) >= 6, 120)
    assert [each["name"] for each in agent.of("activity")] == ["eval", ""] * 3
