"""Cost of a load plan for one rank of a large job: time and memory, in a process of its own.

``python -m benchmarks.load_plan FILE TENSORS RANK WORLD FILES``: the metadata in FILE, stock or compact, of so many
TENSORS in so many FILES, and the load plan of RANK among WORLD ranks, each with an even part of every tensor.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def measured(file: Path, tensors: int, rank: int, world: int, files: int) -> dict[str, float]:
    """Seconds, MiB at the peak beyond what the process took before, and how many reads were planned."""
    arguments = [str(file), *(str(each) for each in (tensors, rank, world, files))]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_plan", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(file: Path, tensors: int, rank: int, world: int, files: int) -> None:
    """Print what :func:`measured` returns."""
    import torch  # noqa: PLC0415  (not counted)
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata  # noqa: PLC0415

    from benchmarks.planning import _WIDTH  # noqa: PLC0415
    from holdfast.session import rng  # noqa: PLC0415
    from holdfast.storage.checkpoints.format import boxes, structure  # noqa: PLC0415
    from holdfast.storage.checkpoints.format.compact import CompactMetadata  # noqa: PLC0415
    from holdfast.storage.checkpoints.format.safe_metadata import load_metadata  # noqa: PLC0415
    from holdfast.storage.checkpoints.load.safe_load import SafeLoadPlanner  # noqa: PLC0415

    class Shard(torch.Tensor):
        """An even part of a tensor."""

        def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
            low, high = _WIDTH * rank // world, _WIDTH * (rank + 1) // world
            return [ChunkStorageMetadata(torch.Size((low, 0)), torch.Size((high - low, 64)))]

    state: dict[str, object] = {
        f"model.stage0.layers.{number}.weight": torch.empty(
            (_WIDTH, 64), dtype=torch.bfloat16, device="meta"
        ).as_subclass(Shard)
        for number in range(tensors)
    }
    state |= dict.fromkeys([f"{structure.key(rank)}.model", f"{rng.key(rank)}.python"])
    before = _memory_mib(forget_peak=True)
    begun, used = time.perf_counter(), time.process_time()
    data = file.read_bytes()
    if boxes.is_compact(data):
        names = [f"__{each}_0.distcp" for each in range(files)]

        def fetch(spans: object) -> list[memoryview]:
            return [memoryview(data)[start:end] for start, end in spans]  # type: ignore[attr-defined]

        metadata = CompactMetadata(boxes.Boxes(data), names, fetch, lambda: load_metadata(b""))  # type: ignore[arg-type]
    else:
        metadata = load_metadata(data)  # type: ignore[assignment]
    held = metadata.state_dict_metadata
    assert len(rng.saved_ranks(held)) == len(structure.saved_ranks(held)) == files
    planner = SafeLoadPlanner(flatten_state_dict=False)
    planner.state_dict, planner.metadata = state, metadata
    if isinstance(metadata, CompactMetadata):
        metadata.narrow(state)
    plan = planner.create_local_plan()
    places = [metadata.storage_data[item.storage_index] for item in plan.items]
    print(
        json.dumps(
            {
                "s": time.perf_counter() - begun,
                "cpu_s": time.process_time() - used,
                "mib": _memory_mib() - before,
                "reads": len(places),
            }
        )
    )


def _memory_mib(*, forget_peak: bool = False) -> float:
    """The most memory that the process had so far, or since the peak was last forgotten."""
    if forget_peak:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(each) for each in sys.argv[2:]))
