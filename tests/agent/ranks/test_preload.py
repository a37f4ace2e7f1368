"""The fork server loads nearly all that a first step imports of torch, and nothing that a fork would break."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast.agent.ranks import forkserver

pytestmark = pytest.mark.torch

BODY = """
import importlib, json, os, sys
import torch

asked = []

def trap(room, name):
    usual = getattr(room, name)
    def call(*args, **named):
        asked.append(f"{room.__name__}.{name}")
        return usual(*args, **named)
    setattr(room, name, call)

for room in (torch.cuda, torch.xpu, torch.accelerator):
    for name in ("is_available", "device_count", "current_device", "_lazy_init", "current_accelerator"):
        if hasattr(room, name):
            trap(room, name)
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
loaded, threads, loading = set(sys.modules), len(os.listdir("/proc/self/task")), list(asked)
from holdfast.session.rehearsal import rehearse
rehearse()
late = sorted(name for name in set(sys.modules) - loaded if name.partition(".")[0] == "torch")
print(json.dumps({"asked": loading, "threads": threads, "late": late}))
"""


def test_a_first_step_imports_hardly_anything_of_torch() -> None:
    """Loading asks for no accelerator (its driver would not survive the fork) and starts no thread of torch's."""
    wanted = json.dumps(forkserver.modules(["torch"]))
    done = subprocess.run(
        [sys.executable, "-c", BODY, wanted], capture_output=True, text=True, timeout=300, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["asked"] == []
    assert len(found["late"]) < 10, found["late"]  # hundreds, where torch._dynamo is among them
    assert found["threads"] <= 2, "the interpreter's and numpy's or OpenBLAS's"
