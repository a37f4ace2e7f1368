"""Variables that are read when Python or a library is loaded take effect as under ``python SCRIPT``."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.agent.ranks import own_interpreter
from holdfast.models.alert import AlertKind
from tests.agent.gateway import FakeGateway, until
from tests.agent.site import AgentProcess

SCRIPT = """
import json, os, sys
from pathlib import Path
import only_there

note = Path(sys.argv[1])
facts = {"hash": hash("holdfast"), "warn": sys.warnoptions, "lib": only_there.NAME, "args": sys.argv[2:]}
if "RANK" in os.environ:
    facts |= {"left": [name for name in os.environ if "ORDER" in name], "pid": os.getpid(), "file": __file__}
note.with_suffix(".new").write_text(json.dumps(facts))
note.with_suffix(".new").rename(note)
{}["missing"]
"""


@pytest.mark.parametrize(
    ("wanted", "present", "expected"),
    [
        ({"PYTHONPATH": "src"}, {}, ["PYTHONPATH"]),
        ({"PYTHONPATH": "src"}, {"PYTHONPATH": "src"}, []),
        ({"PYTHONHASHSEED": "0"}, {"PYTHONHASHSEED": "0"}, []),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, {}, ["LD_PRELOAD"]),
        ({"TORCH_LOGS": "dynamo", "TORCHDYNAMO_DISABLE": "1"}, {}, ["TORCHDYNAMO_DISABLE", "TORCH_LOGS"]),
        ({"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}, {}, ["MKL_NUM_THREADS"]),
        # Read later, or set for every rank.
        ({"TORCHINDUCTOR_CACHE_DIR": "/x", "TORCH_FR_BUFFER_SIZE": "9", "TORCH_NCCL_X": "1"}, {}, []),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, {}, ["PYTORCH_CUDA_ALLOC_CONF"]),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True, backend: cudaMallocAsync"},
            {},
            ["PYTORCH_ALLOC_CONF"],
        ),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, {}, []),
        ({"PYTORCH_CUDA_ALLOC_CONF": "x", "NCCL_DEBUG": "INFO", "TORCH_HOME": "/x"}, {}, []),
        ({"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": "0", "TORCHELASTIC_RUN_ID": "x"}, {}, []),
    ],
)
def test_only_variables_that_come_too_late(
    wanted: dict[str, str], present: dict[str, str], expected: list[str]
) -> None:
    assert own_interpreter.needed(wanted, present) == expected


@pytest.mark.parametrize("asked", [True, False])
def test_gpus_that_a_fork_may_not_use_take_a_new_interpreter(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """As torch reports it where it is built for CUDA."""
    built = SimpleNamespace(_cuda_isInBadFork=lambda: asked)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=built))
    assert own_interpreter.lost_cuda() is asked


@pytest.mark.parametrize("torch", [None, SimpleNamespace(), SimpleNamespace(_C=SimpleNamespace())])
def test_without_cuda_there_is_none_to_lose(monkeypatch: pytest.MonkeyPatch, torch: object) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert not own_interpreter.lost_cuda()


@pytest.mark.e2e
async def test_a_jobs_variables_act_as_on_a_program(
    agent: AgentProcess, gateway: FakeGateway, tmp_path: Path
) -> None:
    """Its modules, hashes and warnings; the agent knows the process, and hears of its error, as of any rank."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_there.py").write_text("NAME = 'lib'")
    env = {"PYTHONPATH": str(tmp_path / "lib"), "PYTHONHASHSEED": "77", "PYTHONWARNINGS": "ignore"}
    agent.script("own", SCRIPT)
    note = tmp_path / "rank"
    async with agent.client as client:
        command = agent.start("own", ranks=(0,), world_size=1, args=(str(note), "a b"), env=env)
        (forked,) = await client.start(command)
        (alert,) = until(lambda: gateway.alerts(AlertKind.RANK_EXIT, "own"))
    assert (alert.evidence["exit_code"], alert.evidence["error_type"]) == (1, "KeyError")
    assert alert.evidence["user_frame"].startswith("train.py:")
    (tmp_path / "train.py").write_text(SCRIPT)
    plain = [sys.executable, tmp_path / "train.py", tmp_path / "plain", "a b"]
    await asyncio.to_thread(subprocess.run, plain, env=os.environ | env, check=False, timeout=60)
    actual, expected = (json.loads((tmp_path / name).read_text()) for name in ("rank", "plain"))
    assert (actual.pop("pid"), actual.pop("left")) == (forked.pid, [])
    assert actual.pop("file").endswith("/train.py")
    assert actual == expected
