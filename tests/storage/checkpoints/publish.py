"""Makes of shard files the checkpoint directory that an agent would put into S3."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from holdfast.storage.checkpoints.save import buffers


def publish(folder: Path, step: int, out: Path) -> Path:
    """Write the owned prefix of each rank's shard of ``step``, and the global metadata, to ``out``."""
    out.mkdir()
    plan = ""
    for path, header in buffers.inventory(folder):
        if header.step == step:
            start = header.payload_offset
            content = path.read_bytes()[start : start + header.owned_nbytes]
            (out / f"__{header.rank}_0.distcp").write_bytes(content)
            plan = header.plan
    (out / ".metadata").write_bytes(buffers.metadata_path(folder, plan).read_bytes())
    return out


def stock_load(directory: Path) -> dict[str, Any]:
    """The state that stock torch reads from ``directory``, in a process that never imports holdfast."""
    result = directory.parent / f"{directory.name}.pt"
    script = Path(__file__).with_name("stock_load.py")
    done = subprocess.run(
        [sys.executable, "-I", str(script), str(directory), str(result)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = torch.load(result, weights_only=False)
    return loaded
