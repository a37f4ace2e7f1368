"""A rank's state goes into a shard file and comes back the same; stock torch reads it too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.describe import describe
from holdfast.storage.checkpoints.format.flat import flat_shards
from holdfast.storage.checkpoints.format.global_plan import plan_globally
from holdfast.storage.checkpoints.format.layout import ShardLayout, lay_out
from holdfast.storage.checkpoints.format.plan import fits, make_plan, plan_of, write_metadata
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter
from tests.e2e.waiting import wait_for
from tests.storage.checkpoints.publish import publish, stock_load

pytestmark = pytest.mark.torch


def state(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {
        "model": {
            "weight": torch.randn(5, 7),
            "half": torch.randn(3).bfloat16(),
            "mask": torch.rand(9) > 0.5,
            "count": torch.tensor(3 + seed),
            "empty": torch.empty(0, 4),
            "strided": torch.randn(6, 4).t(),
            "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        },
        "loader": {"position": 17 + seed, "names": ["a", "b"], "nested": [{"x": 1.5}]},
    }


def writer(folder: Path, values: dict[str, Any]) -> ShardWriter:
    planned = make_plan(values, folder, epoch=1, number=1)
    return ShardWriter(planned.layout, Owner("gpt", 1, 0, 1), folder)


def save(each: ShardWriter, values: dict[str, Any], step: int) -> Path:
    contents = each.collect(flatten_state_dict(values)[0])
    assert contents is not None
    return each.save(contents, step)


def into(values: dict[str, Any]) -> Callable[[Metadata], dict[str, Any]]:
    return lambda _: values


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return bool(left == right)


def test_each_save_replaces_the_values(tmp_path: Path) -> None:
    """The structure is written once; the values of every save come back exactly."""
    each = writer(tmp_path, state())
    paths = [save(each, state(step), step) for step in range(1, 5)]
    assert same(reader.load(paths[2], into(state())), state(3))
    assert same(reader.load(paths[3], into(state())), state(4))


def test_stock_torch_reads_the_owned_prefix(tmp_path: Path) -> None:
    """The prefix and the global metadata are a checkpoint for a process that never saw holdfast."""
    each = writer(tmp_path / "shm", state())
    for step in (1, 2):
        save(each, state(step), step)
    assert same(stock_load(publish(tmp_path / "shm", 2, tmp_path / "ckpt")), state(2))


def test_a_damaged_shard_is_not_loaded(tmp_path: Path) -> None:
    """Bytes are verified before any of them reaches the state."""
    path = save(writer(tmp_path, state()), state(), 4)
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="rank 0 at step 4"):
        reader.load(path, into(state()))


def test_a_gpu_without_memory_is_no_fault_of_the_checkpoint(tmp_path: Path) -> None:
    """No other checkpoint would fit either: the error stays what it is."""
    path = save(writer(tmp_path, state()), state(), 4)

    def full(_: Metadata) -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        reader.load(path, full)


def test_a_key_that_was_not_saved_is_named(tmp_path: Path) -> None:
    """The error of a state that does not fit names the missing key."""
    path = save(writer(tmp_path, state()), state(), 4)
    with pytest.raises(CheckpointError, match="extra"):
        reader.load(path, into(state() | {"extra": torch.zeros(2)}))


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"model": {**state()["model"], "weight": torch.zeros(5, 8)}},
        {"model": {**state()["model"], "weight": torch.zeros(5, 7, dtype=torch.float64)}},
        {"model": {**state()["model"], "weight": "no tensor"}},
        {"loader": {**state()["loader"], "names": ["long"] * 2000 + [str(n) for n in range(500)]}},
    ],
)
def test_state_of_another_structure_asks_for_a_new_plan(tmp_path: Path, change: dict[str, Any]) -> None:
    """New keys, shapes, types, or an object that outgrew its slot do not fit the layout."""
    each = writer(tmp_path, state())
    assert each.collect(flatten_state_dict(state())[0]) is not None
    assert each.collect(flatten_state_dict(state() | change)[0]) is None


def test_objects_may_grow_within_their_slot(tmp_path: Path) -> None:
    """A counter that gets longer needs no new plan."""
    each = writer(tmp_path, state())
    longer = state()
    longer["loader"]["position"] = 10**200
    path = save(each, longer, 9)
    assert same(reader.load(path, into(state())), longer)


def test_a_state_that_ranks_disagree_about_is_refused(tmp_path: Path) -> None:
    """One name for two shapes, or a sharded tensor with a part missing, is named."""
    names = {"w": torch.zeros(4), "n": 1}
    one = describe(local_items(names), names, {}, "m0", "").description
    other = {"w": torch.zeros(5), "n": 2}
    two = describe(local_items(other), other, {}, "m1", "")
    outlines = {
        one.digest: describe(local_items(names), names, {}, "m0", "").shared,
        two.description.digest: two.shared,
    }
    with pytest.raises(
        CheckpointError, match=r"'w' is a tensor \[4\] of torch.float32 on one rank and a tensor \[5\]"
    ):
        plan_globally([one, two.description], outlines)
    half = replace(one, boxes=one.boxes // 2)
    with pytest.raises(CheckpointError, match=r"'w': .* make up 2 of 4 elements"):
        plan_globally([half], {one.digest: outlines[one.digest]})
    same = describe(local_items(names | {"n": 3}), names | {"n": 3}, {}, "m1", "").description
    assert plan_globally([one, same], {one.digest: outlines[one.digest]}).differing == ("n",)


def local_items(values: dict[str, Any]) -> list[WriteItem]:
    return create_default_local_save_plan(values, True).items


def test_metadata_of_old_epochs_is_dropped(tmp_path: Path) -> None:
    """Only the running epoch's metadata and the one before are kept."""
    for epoch in (1, 2, 3):
        write_metadata(tmp_path, epoch, f"{epoch}.1", b"x")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"metadata-2.pickle", "metadata-2.1.pickle", "metadata-3.pickle", "metadata-3.1.pickle"}


def test_a_plan_is_read_back_from_its_shard(tmp_path: Path) -> None:
    """The layout in the file is the one that was planned: the next epoch's files are alike to the byte."""
    values = state() | {"flat": dict(flat_shards({"a": (3, 5), "b": (4,)}, torch.arange(19.0), 0))}
    each = writer(tmp_path, values)
    path = save(each, values, 3)
    layout = plan_of(path, tmp_path, rank=0, world_size=1)
    assert layout == each.layout
    again = save(ShardWriter(layout, Owner("gpt", 1, 0, 1), tmp_path / "again"), values, 3)
    assert again.read_bytes() == path.read_bytes()


def test_a_plan_of_others_is_not_kept(tmp_path: Path) -> None:
    """Another rank's or world size's shard, or rank 0 without the global metadata, calls for a new plan."""
    path = save(writer(tmp_path, state()), state(), 3)
    assert plan_of(path, tmp_path, rank=1, world_size=1) is None
    assert plan_of(path, tmp_path, rank=0, world_size=2) is None
    assert plan_of(path, tmp_path / "elsewhere", rank=0, world_size=1) is None
    assert plan_of(tmp_path / "none", tmp_path, rank=0, world_size=1) is None


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"position": 18}, True),
        ({"extra": 1}, False),
        ({"weight": torch.zeros(7, 5)}, False),
        ({"weight": torch.zeros(5, 7).half()}, False),
        # As many elements of the same tensors, cut elsewhere.
        (dict(flat_shards({"a": (4, 4), "b": (4,)}, torch.zeros(10), 6)), False),
    ],
)
def test_a_kept_plan_fits_only_the_very_boxes(tmp_path: Path, change: dict[str, Any], kept: bool) -> None:
    """Shapes, types, names and placements decide, values do not."""
    flat = {"weight": torch.zeros(5, 7), "position": 17}
    flat |= flat_shards({"a": (4, 4), "b": (4,)}, torch.zeros(10), 5)
    layout = lay_out_alone(flat)
    assert fits(layout, flat | change) is kept


def lay_out_alone(flat: dict[str, Any]) -> ShardLayout:
    held = describe(local_items(flat), flat, {}, "m0", "")
    rest = [held.piece(number, 0, held.rows(number)) for number in range(len(held.items))]
    return lay_out("1.1", [], rest, {})


def test_metadata_that_a_shard_needs_is_kept(tmp_path: Path) -> None:
    """Epochs later, while the newest complete shard is still one of the old plan."""
    save(writer(tmp_path, state()), state(), 3)
    for epoch in (5, 6):
        write_metadata(tmp_path, epoch, f"{epoch}.1", b"x")
    assert buffers.metadata_path(tmp_path, "1.1").exists()
    assert not buffers.metadata_path(tmp_path, 1).exists()


def save_for_ever(folder: Path, announced: Any) -> None:
    """Body of the process that is killed: every step's tensor holds the step's number."""
    values = {"weight": torch.zeros(2_000_000)}
    each = writer(folder, values)
    for step in range(1, 1_000_000):
        values["weight"].fill_(step)
        save(each, values, step)
        announced.value = step


def start_saving(forks: ForkServerContext, folder: Path) -> tuple[BaseProcess, Any]:
    """A process that has announced two steps, and what it announces."""
    # Without a lock: the writer may be stopped or killed while it announces.
    announced = forks.RawValue("q", 0)
    process = forks.Process(target=save_for_ever, args=(folder, announced))
    process.start()
    wait_for("two steps", lambda: announced.value >= 2, every_s=0.001)
    return process, announced


def stop_in_a_copy(pid: int, folder: Path) -> None:
    """Stop the writer, again and again, until it stands where one of its two files is not complete."""
    for look in range(10_000):
        os.kill(pid, signal.SIGSTOP)
        wait_for("the writer to stop", lambda: _state_of(pid) == "T", every_s=0.0)
        if len(buffers.inventory(folder)) == 1:
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.0003 * (look % 7))
    raise AssertionError("no stop hit a copy")


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.e2e
def test_sigkill_at_any_moment_leaves_a_complete_shard(tmp_path: Path) -> None:
    """Whenever the writer dies, the newest complete shard is the last announced step or later, and whole."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch", "torch.distributed.checkpoint", __name__])
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        process, announced = start_saving(forks, folder)
        assert process.pid
        if in_a_copy := attempt % 2 == 1:
            stop_in_a_copy(process.pid, folder)
        else:
            time.sleep(0.0012 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        shards = [(path, each.step) for path, each in buffers.inventory(folder)]
        assert len(shards) == 1 or not in_a_copy
        path, newest = shards[-1]
        assert newest >= announced.value >= 2
        loaded = reader.load(path, into({"weight": torch.zeros(2_000_000)}))
        assert torch.equal(loaded["weight"], torch.full((2_000_000,), float(newest)))
        for held, _ in shards:
            buffers.verify(held)
        for held in folder.iterdir():
            held.unlink()
