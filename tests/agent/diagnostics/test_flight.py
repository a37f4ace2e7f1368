"""Flight recordings: written by a rank that hangs, read without trusting them."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import bounded_pickle
from holdfast.agent.diagnostics import flight, flight_files
from holdfast.agent.ranks import flight_thread
from holdfast.bounded_pickle import MaliciousPickleError

SCRIPT = """
import os, sys
rank = int(sys.argv[1])
from holdfast.agent.ranks import flight_thread
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
def test_broken_recordings_accuse_no_rank(content: bytes) -> None:
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


def entry(number: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    """As NCCL's recorder has it."""
    return {
        "record_id": number - 1,
        "pg_id": 1,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4, 2]],
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        **more,
    }


def recording(*entries: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {"1": {"last_enqueued_collective": 7, "last_completed_collective": 6}},
        "entries": list(entries),
    }


def test_nccl_recording_is_summed_up() -> None:
    """Members from the configuration, numbers from the entries; the counters of ``pg_status`` are the process's own."""
    point = entry(9, "scheduled", profiling_name="nccl:send 1->2", is_p2p=True, p2p_seq_id=1)
    dump = recording(entry(6), entry(7, "scheduled"), point)
    (found,) = flight.summarise(1, flight.load(pickle.dumps(dump)))
    assert (found.group, found.backend, found.ranks) == ("0", "nccl", (0, 1, 2))
    assert (found.enqueued, found.completed, found.started) == (7, 6, None)
    assert (found.operation, found.recent) == ("nccl:all_reduce", {6: "all_reduce 4x2", 7: "all_reduce 4x2"})
    assert (found.sending, found.peers) == (True, (2,))


def test_what_timed_out_is_not_complete() -> None:
    """NCCL's watchdog retires it too."""
    (found,) = flight.summarise(1, recording(entry(6), entry(7, "started", retired=True)))
    assert (found.enqueued, found.completed) == (7, 6)


def test_starts_are_reported_where_they_are_recorded() -> None:
    """A kernel that is queued behind a dead one was never started."""
    (found,) = flight.summarise(
        1, recording(entry(6, time_discovered_started_ns=5), entry(7, "scheduled"), entry(8, "scheduled"))
    )
    assert (found.enqueued, found.started, found.completed) == (8, 6, 6)


def test_of_operations_launched_together_the_launch_counts() -> None:
    """The others never end in the recording."""
    both = [
        entry(1, "scheduled", profiling_name=f"nccl:{name}", is_p2p=True, p2p_seq_id=4, collective_seq_id=0)
        for name in ("send 1->2", "recv 1<-0")
    ]
    launch = entry(
        3, "completed", profiling_name="nccl:coalesced", is_p2p=True, p2p_seq_id=4, collective_seq_id=0
    )
    (found,) = flight.summarise(1, recording(*both, launch))
    assert (found.sending, found.peers) == (False, ())
    (found,) = flight.summarise(1, recording(*both, launch | {"state": "scheduled"}))
    assert (found.sending, found.peers) == (True, (0, 2))


def test_groups_that_a_rank_was_silent_in_are_reported_until_entries_are_lost() -> None:
    """A ring buffer that has wrapped is no proof of silence."""
    config = {"pg_config": {"0": {"ranks": "[0, 1]"}, "5": {"ranks": "[1, 2]"}}}
    found = flight.summarise(1, recording(entry(1)) | config)
    assert [(each.group, each.enqueued) for each in found] == [("0", 1), ("5", -1)]
    assert [each.group for each in flight.summarise(1, recording(entry(90)) | config)] == ["0"]


def asked(*entries: dict[str, Any]) -> bytes:
    """As the rank's own thread writes it."""
    groups = [{"name": "0", "ranks": [0, 1, 2]}, {"name": "5", "ranks": [1, 2]}]
    return json.dumps({"groups": groups, "recordings": [recording(*entries), {"pg_config": {}}]}).encode()


async def test_what_the_watchdog_wrote_counts_and_stays(tmp_path: Path) -> None:
    """Once collectives are aborted, a rank's own answer has less; groups that only the watchdog's file has are kept."""
    watchdog = pickle.dumps(recording(entry(6), entry(7, "started")))
    (tmp_path / "1").write_bytes(watchdog)
    (tmp_path / "1.asked").write_bytes(asked(entry(6), entry(7)))
    found = {each.group: each for each in await flight.collect(tmp_path, {1: 0})}
    assert (found["0"].enqueued, found["0"].completed) == (7, 6)
    assert found["5"].ranks == (1, 2)
    assert (tmp_path / "1").read_bytes() == watchdog


async def test_what_the_watchdog_wrote_in_another_epoch_is_left_out(tmp_path: Path) -> None:
    """Where the job names a place of its own for it."""
    (tmp_path / "trace_1").write_bytes(pickle.dumps(recording(entry(9, "started"))))
    os.utime(tmp_path / "trace_1", (1_000, 1_000))
    prefix = f"{tmp_path}/trace_"
    assert await flight.collect(tmp_path, {1: 0}, watchdog=prefix, since=2_000.0) == []
    (found,) = await flight.collect(tmp_path, {1: 0}, watchdog=prefix, since=500.0)
    assert found.enqueued == 9


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"groups": 3, "recordings": 4}',
        b"[" * 100_000,
        b" " * (flight.MAX_ASKED_BYTES + 1),
    ],
    ids=range(6),
)
async def test_what_a_rank_wrote_is_not_trusted(tmp_path: Path, content: bytes) -> None:
    """It runs a user's code."""
    (tmp_path / "0.asked").write_bytes(content)
    assert await flight.collect(tmp_path, {0: 0}) == []


def test_recorders_are_asked_for_and_a_job_keeps_what_it_says() -> None:
    """NCCL's dump on a timeout too; the older names count as the job's own word."""
    own = flight_files.environment("/f", {})
    assert own["TORCH_FR_DUMP_TEMP_FILE"] == "/f/"
    assert (own["TORCH_FR_BUFFER_SIZE"], own["TORCH_NCCL_DUMP_ON_TIMEOUT"]) == ("2000", "1")
    given = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/g/t_", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}
    assert flight_files.environment("/f", given | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}) == {
        flight_thread.ENV_FOLDER: "/f"
    }
    assert flight_files.watchdog_files("/f", given) == "/g/t_"
    assert flight_files.watchdog_files("/f", {}) == "/f/"


def test_both_recorders_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's is another one than all others'; a build without it has one only."""
    from torch._C import _distributed_c10d  # noqa: PLC0415

    def nccl(*, includeCollectives: bool, onlyActive: bool) -> str:  # noqa: N803
        return json.dumps(recording(entry(6), entry(7, "started")))

    importlib.import_module("torch.distributed")
    monkeypatch.setattr(flight_thread, "_before", {})
    flight_thread.begin_epoch()  # torch's recorder is the process's: it may hold other tests' groups
    monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace_json", nccl, raising=False)
    flight_thread.write(tmp_path / "1.asked")
    (found,) = flight.read_asked(1, (tmp_path / "1.asked").read_bytes())
    assert (found.backend, found.enqueued, found.completed) == ("nccl", 7, 6)


def test_a_process_that_outlived_an_epoch_leaves_that_ones_collectives_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next epoch's groups have the same names and count from one again, and the recorder is never emptied."""
    from torch._C import _distributed_c10d  # noqa: PLC0415

    entries = [entry(6), entry(7, "started")]

    def nccl(*, includeCollectives: bool, onlyActive: bool) -> str:  # noqa: N803
        return json.dumps(recording(*({**each, "record_id": at} for at, each in enumerate(entries))))

    monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace_json", nccl, raising=False)
    monkeypatch.setattr(flight_thread, "_before", {})
    importlib.import_module("torch.distributed")
    flight_thread.begin_epoch()
    entries += [entry(1), entry(2, "started")]
    flight_thread.write(tmp_path / "1.asked")
    (found,) = flight.read_asked(1, (tmp_path / "1.asked").read_bytes())
    assert (found.enqueued, found.completed) == (2, 1)


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
async def test_hanging_rank_writes_its_recording_when_asked(tmp_path: Path) -> None:
    """Real gloo: rank 0 hangs inside a collective that rank 1 has not come to."""
    folder = tmp_path / "flight"
    folder.mkdir()
    env = os.environ | {
        "TORCH_FR_BUFFER_SIZE": "100",
        flight_thread.ENV_FOLDER: str(folder),
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
            done = {rank: (found.enqueued, found.completed) for rank, found in records.items()}
            if done == {0: (3, 2), 1: (2, 2)}:  # a rank may take longer to write than it is waited for
                break
            await asyncio.sleep(0.05)
        assert (records[0].enqueued, records[0].completed) == (3, 2)
        assert (records[1].enqueued, records[1].completed) == (2, 2)
        assert records[0].operation == "gloo:all_reduce"
        assert records[0].ranks == (0, 1)  # gloo's recorder does not record them
        assert all(process.poll() is None for process in ranks)
    finally:
        for process in ranks:
            process.send_signal(signal.SIGKILL)
            process.wait()
