"""The example: deterministic, restartable bit for bit, and plain under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from holdfast.models.job import JobSpec
from tests.session.conftest import MakeAgent, make_agent
from tests.session.harness import EXAMPLE, REPOSITORY

__all__ = ["make_agent"]


def test_the_job_file_is_valid() -> None:
    """The job file is what `holdfast submit` expects and names a script that is there."""
    path = REPOSITORY / "examples" / "train_gpt.yaml"
    spec = JobSpec.model_validate(yaml.safe_load(path.read_text()))
    assert (spec.name, spec.machines, spec.ranks_per_machine) == ("gpt", 4, 2)
    assert (path.parent / spec.code / spec.script).is_file()


@pytest.mark.thorough
@pytest.mark.e2e
@pytest.mark.torch
def test_an_interrupted_run_ends_with_the_same_weights(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Killed at a step, restored from memory, killed again: the final weights are the same bit for bit."""
    whole, agent = make_agent(2), make_agent(2)
    args = ["--steps", 14, "--layers", 1, "--out"]
    whole.start(EXAMPLE, [*args, tmp_path / "whole.pt"])
    assert whole.join() == [0] * 2, whole.output()
    # So long a step that it does not end before it is killed, however late this process sees that it may be.
    slow = [*args, tmp_path / "broken.pt", "--step-seconds", 1]
    agent.start(EXAMPLE, slow)
    for upto in (4, 9):
        agent.wait_for(lambda upto=upto: any(each["step"] >= upto for each in agent.of("saved")))
        agent.kill()
        step = agent.common_step()
        assert upto - 1 <= step < 14
        agent.start(EXAMPLE, slow, lambda rank, step=step: (step, agent.shard(rank, step)))
    assert agent.join() == [0] * 2, agent.output()
    expected, found = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "broken"))
    assert found["digest"] == expected["digest"]
    assert all(torch.equal(expected["model"][name], found["model"][name]) for name in expected["model"])


@pytest.mark.e2e
@pytest.mark.thorough
@pytest.mark.torch
def test_bit_exactness_needs_fixed_gradient_buckets(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Control: when DDP may regroup gradients after its first step, the restarted run differs."""
    script = tmp_path / "regroups.py"
    script.write_text(EXAMPLE.read_text().replace(", find_unused_parameters=True)", ")"))
    args = ["--layers", 1, "--steps", 8, "--out"]
    whole, agent = make_agent(4), make_agent(4)
    whole.start(script, [*args, tmp_path / "whole.pt"])
    assert whole.join() == [0] * 4, whole.output()
    agent.start(script, ["--layers", 1, "--steps", 4])
    assert agent.join() == [0] * 4, agent.output()
    agent.start(script, [*args, tmp_path / "broken.pt"], lambda rank: (4, agent.shard(rank, 4)))
    assert agent.join() == [0] * 4, agent.output()
    expected, found = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "broken"))
    assert found["digest"] != expected["digest"]


@pytest.mark.e2e
@pytest.mark.torch
def test_it_runs_under_plain_torchrun(tmp_path: Path) -> None:
    """The same file, no agent: it trains and writes its weights."""
    out = tmp_path / "end.pt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(EXAMPLE), "--steps", "5", "--out", str(out)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.terminate()  # not killed: torchrun ends its workers first
            raise
    assert process.returncode == 0, errors
    assert torch.load(out)["step"] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["end.pt"]
