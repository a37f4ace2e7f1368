"""Trainings on a GPU that go on in a new process end as those that were not interrupted, bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.errors import CheckpointError
from tests.gpu.saving import SHARED_MEMORY, agent_in_memory, child, device, report
from tests.gpu.trainings import TRAININGS
from tests.session.small import session_of

QUICK = [name for name in TRAININGS if name != "compiled"]
PROGRAM = "tests.gpu.scripts.resumed"
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-", dir=SHARED_MEMORY) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def ended(folder: Path, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """How the selected kinds ended: one process trains them all, another one goes on with each."""
    kinds = [kind for kind in QUICK if any(item.name.endswith(f"[{kind}]") for item in request.session.items)]
    first = child(PROGRAM, ["first", folder, *kinds], DEADLINE_S, ENVIRONMENT)
    second = child(PROGRAM, ["second", folder, *kinds], DEADLINE_S, ENVIRONMENT)
    return {kind: first[kind] | second[kind] for kind in kinds}


def require_equal(found: dict[str, Any]) -> None:
    """Fail with the names of what differs."""
    assert "error" not in found, found["error"]
    for which in ("saved", "resumed"):
        expected, got = found["plain"], found[which]
        differ = {
            name: (expected.get(name), got.get(name))
            for name in {*expected, *got}
            if expected.get(name) != got.get(name)
        }
        assert not differ, (
            f"{which}: {len(differ)} of {len(expected)} differ: {dict(sorted(differ.items())[:6])}"
        )


@pytest.mark.parametrize("kind", QUICK)
def test_a_training_goes_on_bit_for_bit(kind: str, ended: dict[str, dict[str, Any]]) -> None:
    require_equal(ended[kind])


def test_a_compiled_model_goes_on_bit_for_bit(folder: Path) -> None:
    """Where it is compiled again in the new process."""
    found = child(PROGRAM, ["first", folder, "compiled"], DEADLINE_S, ENVIRONMENT)["compiled"]
    found |= child(PROGRAM, ["second", folder, "compiled"], DEADLINE_S, ENVIRONMENT)["compiled"]
    require_equal(found)


def test_a_gpu_without_room_for_the_state_is_named(tmp_path: Path) -> None:
    """A restore that does not fit names the GPU's memory as too small, and the bytes asked for."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(8192, 8192, bias=False).to(device())
        return model, torch.optim.AdamW(model.parameters())

    with agent_in_memory() as agent:
        model, optimizer = made()
        session, state = session_of(agent), {"model": model, "optimizer": optimizer}
        session.restore(state)
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        session.step(1)
        session.checkpoint(state)
        assert session.flush()
        session.close(10)
        del session, state, model, optimizer
        torch.cuda.empty_cache()
        fresh, its_optimizer = made()
        free, _ = torch.cuda.mem_get_info()
        filler = torch.empty(free - (64 << 20), dtype=torch.uint8, device=device())
        try:
            with pytest.raises((CheckpointError, torch.OutOfMemoryError), match=r"out of memory") as caught:
                session_of(agent, (1, agent.shard(0, 1))).restore(
                    {"model": fresh, "optimizer": its_optimizer}
                )
            report(
                "restore-without-memory", {"error": f"{type(caught.value).__name__}: {caught.value}"[:600]}
            )
        finally:
            del filler
            torch.cuda.empty_cache()
