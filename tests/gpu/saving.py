"""For tests of saves on a GPU: a fake agent in shared memory, processes with a deadline, measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast.storage.checkpoints.save import buffers
from tests.session.harness import REPOSITORY, FakeAgent, patience
from tests.session.small import contents

SHARED_MEMORY = Path("/dev/shm")


def device() -> torch.device:
    """Return the GPU; where these tests are tried without one, the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report(name: str, found: Any) -> None:
    """Print what was measured; write it to the folder that ``HOLDFAST_GPU_OUT`` names."""
    say(f"{name}: {json.dumps(found)}")
    if folder := os.environ.get("HOLDFAST_GPU_OUT"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.json").write_text(json.dumps(found, indent=1))


@contextmanager
def agent_in_memory(world_size: int = 1) -> Iterator[FakeAgent]:
    """A fake agent whose shards lie in shared memory, as a real one's do: only such pages can be pinned."""
    with patience(), tempfile.TemporaryDirectory(prefix="holdfast-gpu-", dir=SHARED_MEMORY) as folder:
        made = FakeAgent(Path(folder), world_size)
        try:
            yield made
        finally:
            made.close()


def child(module: str, args: Sequence[object], timeout_s: float, env: Mapping[str, str] | None = None) -> Any:
    """Run ``python -m module args`` in a process of its own; return the JSON in its last line."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=REPOSITORY,
        env=os.environ | dict(env or {}),
    )
    assert done.returncode == 0, f"{module} {args}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def saved_values(folder: Path) -> dict[int, tuple[float, float]]:
    """Return of each complete shard, by step, the smallest and the largest number in any of its float tensors."""
    found: dict[int, tuple[float, float]] = {}
    for path, header in buffers.inventory(folder):
        tensors = [
            each
            for each in contents(path).values()
            if isinstance(each, torch.Tensor) and each.dtype is torch.float32
        ]
        ends = [torch.aminmax(each) for each in tensors]
        found[header.step] = (min(float(low) for low, _ in ends), max(float(high) for _, high in ends))
    return found
