"""Processes: ranks that agree over their process group, and worker processes of torchdata's loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from torch import distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast import data
from holdfast.data.feed import Feed
from tests.data.files import ids, write

pytestmark = pytest.mark.torch

RANK = """
import json, os, sys, time
import torch.distributed as dist
from holdfast import data
from holdfast.errors import HoldfastError
from tests.data.files import ids, write
from pathlib import Path

store, rank, ranks, folder, state_file, steps = sys.argv[1:]
rank = int(rank)
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=int(ranks))
dataset = data.Dataset(data.folder(folder, follow=True, shuffle=5), 12, seed=2, poll_s=0.05, lanes=4)
state = Path(state_file)
if state.exists():
    saved = json.loads(state.read_text())
    dataset.load_state_dict({**saved, "listing": bytes.fromhex(saved["listing"])})
used = []
try:
    for _ in range(int(steps)):
        used += ids(next(dataset))
        if rank == 0 and dataset.taken == 24:  # only this rank knows of it; the others learn by the listing
            write(Path(folder) / "2026/11/24/01/b.jsonl", list(range(24, 60)))
except HoldfastError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    sys.exit()
position = dataset.state_dict()
seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, position)
assert all(each == position for each in seen)
if rank == 0:
    state.write_text(json.dumps({**position, "listing": position["listing"].hex()}))
print(json.dumps({"used": used}))
dist.barrier()
dist.destroy_process_group()
"""


def run(ranks: int, folder: Path, state: Path, steps: int) -> list[dict[str, object]]:
    script = folder.parent / "rank.py"
    script.write_text(RANK)
    store = (folder.parent / f"store-{steps}-{ranks}").as_uri()
    started = [
        subprocess.Popen(
            [sys.executable, str(script), store, str(rank), str(ranks), str(folder), str(state), str(steps)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    return [json.loads(each.communicate(timeout=200)[0]) for each in started]


def test_a_process_that_is_kept_agrees_over_its_new_group(tmp_path: Path) -> None:
    """A data set that was made outside `main`: ranks in new processes wait for all to make the group."""
    write(tmp_path / "a.jsonl", list(range(4)))
    dataset, agreed = data.Dataset(data.folder(tmp_path), 2), []
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            assert dataset.place == (0, 1)
            agreed.append(dataset._agreement())
            dataset.grow()
            assert dataset._agreement() is agreed[-1]
        finally:
            dist.destroy_process_group()
    assert agreed[0] is not agreed[1]
    assert dataset._agreement() is agreed[1]
    dataset.close()


def test_ranks_agree_on_new_partitions_and_resume_as_others(tmp_path: Path) -> None:
    """Three ranks, then two: what one rank lists, all know; the state is equal on all."""
    folder, state = tmp_path / "data", tmp_path / "state.json"
    write(folder / "2026/11/24/00/a.jsonl", list(range(24)))
    first = run(3, folder, state, 3)
    second = run(2, folder, state, 2)
    used = [sample for each in (*first, *second) for sample in each["used"]]  # type: ignore[attr-defined]
    assert Counter(used) == Counter(range(60))


def test_an_error_of_the_listing_is_every_ranks(tmp_path: Path) -> None:
    """None waits for the one that failed."""
    results = run(2, tmp_path / "nowhere", tmp_path / "state.json", 1)
    assert [each["error"] for each in results] == [f"SourceError: {tmp_path}/nowhere: no such folder"] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_resumes_exactly(tmp_path: Path, workers: int) -> None:
    """Its workers share the batches; what they read ahead does not count."""
    for name in "abc":
        write(tmp_path / f"{name}.txt", list(range(ord(name) * 100, ord(name) * 100 + 20)))

    def loader() -> StatefulDataLoader[object]:
        dataset = data.Dataset(data.folder(tmp_path, shuffle=9), 8, rank=1, ranks=2, threads=1)
        return StatefulDataLoader(Feed(dataset), batch_size=None, num_workers=workers)

    whole = [ids(rows) for rows in loader()]
    alone = [ids(rows) for rows in data.Dataset(data.folder(tmp_path, shuffle=9), 8, rank=1, ranks=2)]
    assert whole == alone
    begun = loader()
    iterator = iter(begun)
    used = [ids(next(iterator)) for _ in range(3)]
    again = loader()
    again.load_state_dict(begun.state_dict())
    assert used + [ids(rows) for rows in again] == whole
    dataset = data.Dataset(data.folder(tmp_path, shuffle=9), 8, rank=1, ranks=2, threads=1)
    assert [ids(rows) for rows in Feed(dataset).at(24)] == whole[3:]
