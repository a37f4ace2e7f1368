"""Two epochs' processes with the same slots: the older one can neither change nor replace what the newer one has."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save import buffers, slot_files
from tests.session.killed import save_for_ever
from tests.storage.checkpoints.save.test_buffers import SIZE, write

_forks = multiprocessing.get_context("fork")


@contextmanager
def elsewhere(path: Path, epoch: int) -> Iterator[None]:
    """Another process has the slot mapped for writing."""
    ours, theirs = _forks.Pipe()

    def hold() -> None:
        with slot_files.create_locked(path, SIZE, epoch):
            theirs.send(None)
            theirs.recv()

    process = _forks.Process(target=hold, daemon=True)
    process.start()
    ours.recv()
    try:
        yield
    finally:
        process.kill()
        process.join()


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_a_slot_that_an_older_epoch_has_mapped_is_replaced(tmp_path: Path) -> None:
    """The older epoch's writes go nowhere; once it is gone the file is kept."""
    path = write(tmp_path, 7)
    with elsewhere(path, 1):
        before = inode(path)
        slot_files.create_locked(path, SIZE, 2).close()
        assert inode(path) != before
    before = inode(path)
    slot_files.create_locked(path, SIZE, 3).close()
    assert inode(path) == before


def test_a_process_of_an_older_epoch_replaces_nothing_of_a_newer(tmp_path: Path) -> None:
    """Not even a file that is lent, or of another size: it is refused by name."""
    path = write(tmp_path, 7)
    with elsewhere(path, 2):
        before = inode(path)
        for nbytes in (SIZE, 2 * SIZE):
            with pytest.raises(CheckpointError, match="epoch 2 of the job writes it by now"):
                slot_files.create_locked(path, nbytes, 1)
        slot_files.lend(write(tmp_path, 8), 8, tmp_path / "loan")
        with pytest.raises(CheckpointError, match="left from epoch 1"):
            slot_files.take_over(tmp_path, 3, 1)
        assert inode(path) == before


def test_a_successor_stays_while_another_transfer_has_the_file(tmp_path: Path) -> None:
    """A proof that ends does not drop what an upload reserved."""
    path = write(tmp_path, 7)
    upload, proof = tmp_path / "upload", tmp_path / "proof"
    slot_files.lend(path, 7, upload)
    slot_files.reserve(path, SIZE)
    slot_files.lend(path, 7, proof)
    slot_files.release(path, proof)
    assert slot_files.is_reserved(path)
    slot_files.release(path, upload)
    assert not slot_files.is_reserved(path)


def is_refused_elsewhere(path: Path, epoch: int) -> bool:
    """Whether a process of ``epoch`` may not have the slot."""

    def attempt() -> None:
        try:
            slot_files.create_locked(path, SIZE, epoch)
        except CheckpointError:
            os._exit(3)

    process = _forks.Process(target=attempt)
    process.start()
    process.join()
    return process.exitcode == 3


def test_one_process_maps_its_slot_as_often_as_it_likes(tmp_path: Path) -> None:
    """A new plan of one epoch has a writer of its own; the lock lasts until the last of them is gone."""
    path = write(tmp_path, 7)
    before = inode(path)
    first, second = slot_files.create_locked(path, SIZE, 2), slot_files.create_locked(path, SIZE, 2)
    assert inode(path) == before
    del first
    assert is_refused_elsewhere(path, 1)
    del second
    assert not is_refused_elsewhere(path, 1)


def test_taking_over_keeps_what_is_whole_and_empties_what_is_torn(tmp_path: Path) -> None:
    """A complete shard is copied; one that is being written is none."""
    whole = write(tmp_path, 7)
    torn = write(tmp_path, 8)
    with elsewhere(whole, 1), elsewhere(torn, 1):
        with torn.open("r+b") as file:
            file.seek(buffers.HEADER_BYTES + 10)
            file.write(b"other bytes")
        assert set(slot_files.take_over(tmp_path, 3, 2)) == {whole, torn}
        assert [(path, each.step) for path, each in buffers.inventory(tmp_path)] == [(whole, 7)]
        assert buffers.verify(whole).step == 7
    assert slot_files.take_over(tmp_path, 3, 2) == []


def test_a_take_over_that_is_cut_short_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is put in place when it is complete; until then the slot is what it was, and may be taken again."""

    def cut(_: Path) -> None:
        raise KeyboardInterrupt

    path = write(tmp_path, 7)
    with elsewhere(path, 1):
        with monkeypatch.context() as patch:
            patch.setattr(buffers, "verify", cut)
            with pytest.raises(KeyboardInterrupt):
                slot_files.take_over(tmp_path, 3, 2)
        assert buffers.verify(path).step == 7
        assert slot_files.take_over(tmp_path, 3, 2) == [path]
        assert buffers.verify(path).step == 7
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def start(folder: Path, outcome: Path, epoch: int) -> BaseProcess:
    process = _forks.Process(target=save_for_ever, args=(str(folder), str(outcome), epoch), daemon=True)
    process.start()
    return process


def common(outcome: Path) -> tuple[int, int]:
    epoch, step = struct.unpack("<qq", outcome.read_bytes())
    return epoch, step


def until_another(outcome: Path, process: BaseProcess, saves: int = 1) -> None:
    deadline = time.monotonic() + 240
    for _ in range(saves):
        before = common(outcome)
        while common(outcome) == before:
            assert process.is_alive()
            assert time.monotonic() < deadline, f"nothing is saved after {before}"
            time.sleep(0.0005)


def test_an_epochs_process_that_wakes_beside_the_next_harms_no_shard(tmp_path: Path) -> None:
    """Each is stopped in the middle of its saves, woken when the next has saved, and saves on beside it for a while."""
    shards, outcome = tmp_path / "own", tmp_path / "told"
    outcome.write_bytes(struct.pack("<qq", 0, 0))
    processes: list[BaseProcess] = []
    try:
        for epoch in range(1, 9):
            mine = tmp_path / f"told{epoch}"
            mine.write_bytes(outcome.read_bytes())
            if epoch > 1:
                slot_files.take_over(shards, 0, epoch)
            process = start(shards, mine, epoch)
            processes.append(process)
            until_another(mine, process)
            for older in processes[:-1]:
                with suppress(ProcessLookupError):  # refused meanwhile, and so ended
                    os.kill(older.pid or 0, signal.SIGCONT)
            until_another(mine, process, 20)
            for each in processes:
                with suppress(ProcessLookupError):
                    os.kill(each.pid or 0, signal.SIGSTOP)
            outcome.write_bytes(mine.read_bytes())
            found = {(each.epoch, each.step): path for path, each in buffers.inventory(shards)}
            assert common(outcome) in found, f"{common(outcome)} is gone: {sorted(found)}"
            buffers.verify(found[common(outcome)])
    finally:
        for each in processes:
            each.kill()
            each.join()


def test_more_memory_is_advised_only_where_it_is_full(tmp_path: Path) -> None:
    """A folder that is none is another mistake."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot have 64 bytes \(.+\)\.$"):
        slot_files.create_locked(tmp_path / "file" / "r0-a.shard", 64, 1)


def test_a_limit_of_file_sizes_is_named_as_that(tmp_path: Path) -> None:
    """In a process of its own, since the limit is one of the process."""
    code = (
        "import resource, sys; from pathlib import Path; from holdfast.storage.checkpoints.save import slot_files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); slot_files.create(Path(sys.argv[1]), 1 << 20)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r0-a.shard")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot have 1048576 bytes (File too large)" in done.stderr
    assert "`ulimit -f`" in done.stderr
    assert "shared memory" not in done.stderr
