"""Flight recordings: written by a rank that hangs, read without trusting them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import bounded_pickle, flight
from holdfast.agent.bounded_pickle import MaliciousPickleError
from holdfast.models.agent import FlightRecord

SCRIPT = """
import os, sys
rank = int(sys.argv[1])
from holdfast.agent import flight_thread
flight_thread.start(rank)
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
tensor = torch.ones(3)
dist.all_reduce(tensor)
dist.all_reduce(tensor)
print("two done", flush=True)
if rank == 0:
    dist.all_reduce(tensor)  # hangs: the other rank does not come
import time
time.sleep(600)
"""


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def test_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path) -> None:
    """Not even deep inside what looks like a recording."""
    target = tmp_path / "owned"
    content = pickle.dumps({"entries": [{"profiling_name": Evil(str(target))}]})
    pickle.loads(content)  # the control: it does act when it is trusted
    assert target.exists()
    target.unlink()
    with pytest.raises(MaliciousPickleError, match="system"):
        flight.load(content)
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04",
        b"not a pickle",
        pickle.dumps([1]),
        pickle.dumps({"entries": 3}),
        pickle.dumps({"entries": [1.0]}, protocol=0) + b"tail" * 10,
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
        b"P0\n.",
    ],
    ids=range(8),
)
def test_broken_recordings_accuse_nobody(content: bytes) -> None:
    """Refused with one kind of error, or read as data: never anything else."""
    try:
        found = flight.load(content)
    except MaliciousPickleError:
        return
    assert flight.summarise(0, found) == []


def test_recording_that_is_too_large_is_refused() -> None:
    """Megabytes are data; gigabytes are not read."""
    with pytest.raises(MaliciousPickleError, match="limit"):
        flight.load(b"x" * (bounded_pickle.MAX_BYTES + 1))


def test_nccl_recording_is_summed_up() -> None:
    """Members from the configuration, the newest operation from the entries; point-to-point entries do not count."""
    recording = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": {"last_enqueued_collective": 7, "last_completed_collective": 6}},
        "entries": [
            {"process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce", "is_p2p": False},
            {"process_group": ("0", "default_pg"), "profiling_name": "nccl:send", "is_p2p": True},
        ],
    }
    assert flight.summarise(1, flight.load(pickle.dumps(recording))) == [
        FlightRecord(rank=1, group="0", ranks=(0, 1, 2), enqueued=7, completed=6, operation="nccl:all_reduce")
    ]


def test_of_two_operations_that_end_at_once_the_later_counts() -> None:
    """Two threads of gloo note their ends in either order, and the status keeps what was noted last."""
    entry = {"process_group": ("0", "default_pg"), "profiling_name": "gloo:all_reduce", "is_p2p": False}
    recording = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 1}},
        "entries": [
            {**entry, "collective_seq_id": 1, "state": "scheduled", "retired": True},
            {**entry, "collective_seq_id": 2, "state": "scheduled", "retired": True},
            {**entry, "collective_seq_id": 3, "state": "scheduled", "retired": False},
        ],
    }
    (found,) = flight.summarise(0, flight.load(pickle.dumps(recording)))
    assert (found.enqueued, found.completed) == (3, 2)


async def test_process_that_does_not_know_the_signal_is_not_asked() -> None:
    """It would end by it."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    assert not flight._ask(process.pid)
    await asyncio.sleep(0.05)
    assert process.returncode is None
    process.kill()
    await process.wait()


@pytest.mark.e2e
@pytest.mark.timeout(120)
async def test_hanging_rank_writes_its_recording_when_asked(tmp_path: Path) -> None:
    """Real gloo: rank 0 hangs inside a collective that rank 1 has not come to."""
    folder = tmp_path / "flight"
    folder.mkdir()
    env = os.environ | {
        "TORCH_FR_BUFFER_SIZE": "100",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path / "store")],
            env=env,
            stdout=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert b"two done" in await asyncio.to_thread(process.stdout.readline)
        pids = {rank: process.pid for rank, process in enumerate(ranks)}
        for _ in range(1200):
            records = {r.rank: r for r in await flight.collect(folder, pids, 5.0) if r.group == "0"}
            # The recorder notes the end of a collective a little after its caller goes on.
            if (records[0].enqueued, records[0].completed) == (3, 2) and records[1].completed == 2:
                break
            await asyncio.sleep(0.05)
        assert (records[0].enqueued, records[0].completed) == (3, 2)
        assert (records[1].enqueued, records[1].completed) == (2, 2)
        assert records[0].operation == "gloo:all_reduce"
        assert all(process.poll() is None for process in ranks)
    finally:
        for process in ranks:
            process.send_signal(signal.SIGKILL)
            process.wait()
