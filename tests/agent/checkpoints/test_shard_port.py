from __future__ import annotations

import contextlib
import errno
import itertools
import json
import mmap
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.checkpoints import shard_client, shard_port, shard_wire
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.shard_port import ShardPort
from holdfast.errors import CheckpointError, StaleError, UnauthorizedError, UnavailableError, UnknownError
from holdfast.models.checkpoint import Tier
from holdfast.storage.checkpoints.save import buffers
from holdfast.tls import Tls
from tests import accepting
from tests.agent.shards import write_shard
from tests.certificates import Authority

SECRET = "s3cret"


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory("m1", tmp_path / "m1")


@pytest.fixture
def port(memory: Memory) -> Iterator[ShardPort]:
    made = ShardPort(memory, SECRET, "127.0.0.1")
    yield made
    made.close()


def test_a_pushed_shard_is_the_peers_copy(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """The shard has the same bytes on arrival and passes verification."""
    path = write_shard(tmp_path / "mine", rank=3, step=8, payload=bytes(range(256)) * 40_000)
    shard_client.push(port.address, SECRET, path)
    (shard,) = memory.shards()
    assert (shard.rank, shard.step, shard.tier, shard.machine) == (3, 8, Tier.PEER, "m1")
    copy, _ = memory.require("toy", 3, 8)
    assert buffers.verify(copy).digest == buffers.verify(path).digest
    assert copy.read_bytes()[buffers.HEADER_BYTES :] == path.read_bytes()[buffers.HEADER_BYTES :]


def test_the_peer_keeps_two_steps(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """The newest and the one before, never fewer."""
    for step in (1, 2, 3):
        shard_client.push(port.address, SECRET, write_shard(tmp_path / "mine", step=step))
    assert {shard.step for shard in memory.shards()} == {2, 3}


def test_a_peer_of_one_copy_keeps_the_newest_step(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """In one file, also where there were two before."""
    for step, peer_buffers in ((1, 2), (2, 2), (3, 1), (4, 1)):
        path = write_shard(tmp_path / "mine", step=step)
        shard_client.push(port.address, SECRET, path, peer_buffers=peer_buffers)
        if peer_buffers == 1:
            assert [shard.step for shard in memory.shards()] == [step]
            assert len(list(memory.peer("toy").glob("*.shard"))) == 1
    assert buffers.verify(memory.require("toy", 0, 4)[0]).step == 4


def test_a_torn_copy_is_none_at_all_where_there_is_one(
    tmp_path: Path, memory: Memory, port: ShardPort
) -> None:
    """That is what the choice costs; the next transfer makes the backup whole again."""
    shard_client.push(port.address, SECRET, write_shard(tmp_path / "mine", step=1), peer_buffers=1)
    damaged = write_shard(tmp_path / "mine", step=2)
    with damaged.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\0")
    with pytest.raises(CheckpointError, match="digest"):
        shard_client.push(port.address, SECRET, damaged, peer_buffers=1)
    assert memory.shards() == ()
    shard_client.push(port.address, SECRET, write_shard(tmp_path / "new", step=3), peer_buffers=1)
    assert [shard.step for shard in memory.shards()] == [3]


def test_pull_brings_a_shard_home(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """A machine that takes over a rank gets its shard from any machine that has it."""
    write_shard(memory.own("toy"), rank=1, step=5)
    path = shard_client.pull(port.address, SECRET, job="toy", rank=1, step=5, folder=tmp_path / "new")
    assert buffers.verify(path).step == 5


def test_a_missing_step_is_named(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """The answer lists the steps that exist."""
    write_shard(memory.own("toy"), rank=1, step=5)
    with pytest.raises(CheckpointError, match=r"rank 1 at step 6 \(has steps \[5\]\)"):
        shard_client.pull(port.address, SECRET, job="toy", rank=1, step=6, folder=tmp_path / "new")


def test_a_wrong_secret_is_refused(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """Neither reading nor writing without the secret."""
    path = write_shard(tmp_path / "mine")
    with pytest.raises((UnauthorizedError, UnavailableError)):
        shard_client.push(port.address, "wrong", path)
    with pytest.raises(UnauthorizedError):
        shard_client.pull(port.address, "wrong", job="toy", rank=0, step=1, folder=tmp_path / "new")
    assert memory.shards() == ()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b'{"secret": "wrong"}', "UnauthorizedError"),
        (b'{"secret": "\\ud800"}', "UnauthorizedError"),
        (b'{"secret": NaN}', "UnauthorizedError"),
        (b"{}", "UnauthorizedError"),
        (b"[" * 16_000, "RefusedError"),
        (b'{"secret": ' + b"9" * 5000 + b"}", "RefusedError"),
        (b'"\xff"', "RefusedError"),
    ],
    ids=["wrong", "half a character", "NaN", "none", "nested", "a long number", "not UTF-8"],
)
def test_whatever_a_stranger_says_is_answered_and_a_wrong_secret_counted(
    memory: Memory, caplog: pytest.LogCaptureFixture, line: bytes, answer: str
) -> None:
    """No line of a stranger's brings an error of ours into the log."""
    counted: list[int] = []
    made = ShardPort(memory, SECRET, "127.0.0.1", unauthorized=lambda: counted.append(1))
    host, _, number = made.address.rpartition(":")
    with contextlib.closing(made), socket.create_connection((host, int(number)), 60) as caller:
        caller.sendall(line + b"\n")
        response = json.loads(caller.makefile().readline())
    assert response["error"] == answer
    assert len(counted) == (answer == "UnauthorizedError")
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_damaged_bytes_never_count(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """A shard that changed after its digest was taken is refused, and the older copy stays."""
    good = write_shard(tmp_path / "mine", step=1)
    shard_client.push(port.address, SECRET, good)
    bad = write_shard(tmp_path / "mine", step=2)
    with bad.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    with pytest.raises(CheckpointError, match="digest"):
        shard_client.push(port.address, SECRET, bad)
    assert [shard.step for shard in memory.shards()] == [1]


def test_copies_of_an_older_epoch_are_refused(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """A late copy must not push out what the running epoch resumed from."""
    memory.accept_from["toy"] = 2
    with pytest.raises(StaleError):
        shard_client.push(port.address, SECRET, write_shard(tmp_path / "mine", epoch=1))
    assert memory.shards() == ()


def test_a_copy_that_a_new_epoch_overtakes_does_not_count(
    tmp_path: Path, memory: Memory, port: ShardPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came too slowly: the shards beyond the resumed step are discarded, and it would be one of them."""
    mapped = memory.mapped

    def resumed(path: Path, file_nbytes: int) -> mmap.mmap:
        memory.accept_from["toy"] = 2
        return mapped(path, file_nbytes)

    monkeypatch.setattr(memory, "mapped", resumed)
    with pytest.raises(StaleError):
        shard_client.push(port.address, SECRET, write_shard(tmp_path / "mine", epoch=1))
    assert memory.shards() == ()


@pytest.mark.parametrize("job", ["../../etc", "a/b", "", "~"])
def test_names_do_not_lead_out_of_the_folder(tmp_path: Path, port: ShardPort, job: str) -> None:
    """The job's name becomes a path: only names are taken."""
    host, _, number = port.address.partition(":")
    with socket.create_connection((host, int(number)), timeout=60) as connection:
        request = {"secret": SECRET, "op": "pull", "job": job, "rank": 0, "step": 1}
        connection.sendall(json.dumps(request).encode() + b"\n")
        assert b"is not a job's name" in connection.recv(4096)


def test_half_a_shard_is_no_shard(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """A sender that dies in the middle leaves nothing that counts."""
    path = write_shard(tmp_path / "mine")
    header = buffers.read_header(path)
    assert header
    host, _, number = port.address.partition(":")
    with socket.create_connection((host, int(number)), timeout=60) as connection:
        request = {"secret": SECRET, "op": "push", "job": "toy", "header": header.model_dump()}
        connection.sendall(json.dumps(request).encode() + b"\n" + b"x" * 10)
        connection.shutdown(socket.SHUT_WR)
        assert b"connection ended" in connection.recv(4096)
    assert memory.shards() == ()


def test_no_listener_is_unavailable(tmp_path: Path, port: ShardPort) -> None:
    """A machine that is gone is a transient failure with its address."""
    port.close()
    with pytest.raises(UnavailableError, match=port.address):
        shard_client.push(port.address, SECRET, write_shard(tmp_path / "mine"))


def test_the_checkpoints_metadata_is_on_the_peer_too(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """One per plan that a shard there was saved by; older plans go."""
    for plan in ("1.1", "1.2"):
        path = tmp_path / plan
        path.write_bytes(b"places of " + plan.encode())
        shard_client.push_metadata(port.address, SECRET, "toy", plan, path)
    (kept,) = memory.peer("toy").glob("metadata-*")
    assert kept == buffers.metadata_path(memory.peer("toy"), "1.2")
    assert kept.read_bytes() == b"places of 1.2"
    with pytest.raises(UnknownError, match="is no plan"):
        shard_client.push_metadata(port.address, SECRET, "toy", "../../x", path)


def test_a_machine_that_falls_silent_in_the_middle_is_given_up(
    tmp_path: Path, memory: Memory, port: ShardPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it is the peer: the sender learns it within its bound, and its own shard is untouched."""
    path = write_shard(tmp_path / "mine", payload=b"x" * (8 << 20))
    before = path.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as dead:
        monkeypatch.setattr(shard_wire, "SILENCE_S", 0.2)
        address = f"127.0.0.1:{dead.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=address):
            shard_client.push(address, SECRET, path)
    assert path.read_bytes() == before


HALVES = (b"", b'{"secret": "s3c', b'{"secret": "s3cret", "op": "check", "job": "toy", "rank": 3, "step"')


def crowd(port: ShardPort, count: int = 300) -> list[socket.socket]:
    """So many connections that have sent half of something."""
    host, _, number = port.address.rpartition(":")
    made = []
    for half in itertools.islice(itertools.cycle(HALVES), count):
        made.append(socket.create_connection((host, int(number)), timeout=90))
        made[-1].sendall(half)
    return made


def ended(connection: socket.socket) -> bool:
    """Wait until the other side has ended it."""
    with connection, contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_half_requests_keep_no_neighbour_out(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """300 of them wait: shards are taken and given at once."""
    waiting = crowd(port)
    path = write_shard(tmp_path / "mine", rank=3, step=8)
    shard_client.push(port.address, SECRET, path)
    shard_client.check(port.address, SECRET, job="toy", rank=3, step=8)
    for each in waiting:
        each.close()


def test_half_requests_are_ended(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, those too that go on with a byte now and then."""
    monkeypatch.setattr(shard_port, "REQUEST_S", 0.3)
    port = ShardPort(memory, SECRET, "127.0.0.1")
    waiting = crowd(port, 20)
    dripping = waiting.pop()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while True:
                dripping.sendall(b" ")
                time.sleep(0.05)

    thread = threading.Thread(target=drip)
    thread.start()
    assert [ended(each) for each in waiting].count(True) == len(waiting)
    thread.join(90)
    assert not thread.is_alive()
    port.close()


def test_handshakes_that_do_not_end_keep_no_one_out(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are ended, those too that drip."""
    pki = Authority(tmp_path / "pki")
    tls = Tls(*pki.certify("site", "127.0.0.1"), pki.ca)
    monkeypatch.setattr(shard_port, "REQUEST_S", 90.0)  # as for the handshake that is to succeed
    port = ShardPort(memory, SECRET, "127.0.0.1", tls)
    waiting = crowd(port)
    path = write_shard(tmp_path / "mine", rank=3, step=8)
    shard_client.push(port.address, SECRET, path, tls)
    shard_client.check(port.address, SECRET, job="toy", rank=3, step=8, tls=tls)
    for each in waiting:
        each.close()
    port.close()
    monkeypatch.setattr(shard_port, "REQUEST_S", 1.0)
    port = ShardPort(memory, SECRET, "127.0.0.1", tls)
    waiting = crowd(port)
    assert [ended(each) for each in waiting].count(True) == len(waiting)
    port.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ECONNABORTED, errno.ENOBUFS])
def test_it_goes_on_accepting_after_an_error(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """One that the kernel gives for a connection that is gone, or while there are too many files."""
    monkeypatch.setattr(shard_port, "_PAUSE_S", 0.01)
    failed = accepting.fail_twice(monkeypatch, number)
    port = ShardPort(memory, SECRET, "127.0.0.1")
    with pytest.raises(CheckpointError, match="no shard"):
        shard_client.check(port.address, SECRET, job="toy", rank=0, step=1)
    assert failed == [number] * 2
    port.close()


def test_it_goes_on_accepting_when_no_thread_can_be_started(
    memory: Memory, port: ShardPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed, the next is served."""
    start, failed = threading.Thread.start, []

    def failing(thread: threading.Thread) -> None:
        if thread.name == "shard" and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with pytest.raises(UnavailableError):
        shard_client.check(port.address, SECRET, job="toy", rank=0, step=1)
    with pytest.raises(CheckpointError, match="no shard"):
        shard_client.check(port.address, SECRET, job="toy", rank=0, step=1)
    assert failed


@pytest.mark.parametrize(
    "more", [{"op": "pull"}, {"op": "check", "rank": "x", "step": 1}, {"op": "metadata"}]
)
def test_a_malformed_request_is_answered_and_frees_its_place(
    port: ShardPort, more: dict[str, object]
) -> None:
    """More often than there are places."""
    host, _, number = port.address.rpartition(":")
    request = json.dumps({"secret": SECRET, "job": "toy", **more}).encode() + b"\n"
    for _ in range(shard_port._MAX_TRANSFERS + 1):
        with socket.create_connection((host, int(number)), timeout=90) as connection:
            connection.sendall(request)
            assert json.loads(connection.makefile().readline())["error"] in {"RefusedError", "UnknownError"}
