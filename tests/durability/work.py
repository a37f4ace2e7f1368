"""Work of processes that are killed, or lose power, on the way: each acknowledges what must survive from then on.

Every piece of work comes with a check of what is left in its folder: all that was acknowledged, and nothing torn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from holdfast import durable, envfile, secret
from holdfast.agent.checkpoints import disk, shard_client, shard_port
from holdfast.agent.checkpoints.memory import Memory
from holdfast.clock import FakeClock
from holdfast.drivers.local import LocalDriver
from holdfast.drivers.roster import RosterFile
from holdfast.drivers.slurm.record import HeldNode, RecordFile
from holdfast.models.checkpoint import Tier
from holdfast.models.machine import Scope
from holdfast.settings import Settings
from holdfast.storage.checkpoints.format import plan_file
from holdfast.storage.checkpoints.format.plan import write_metadata
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.code import archive, versions
from holdfast.storage.ledger import Ledger
from tests.agent.shards import write_shard
from tests.storage.ledger.samples import running_job

Acknowledge = Callable[[str], None]
PLAN = plan_file.join(b"stock metadata", b"compact metadata")


@dataclass(frozen=True)
class Work:
    """Something that is done in a folder, and what must be there afterwards whatever happened."""

    files: tuple[str, ...]
    """Names that its failpoints begin with."""
    do: Callable[[Path, Acknowledge], None]
    check: Callable[[Path, Sequence[str]], None]
    prepare: Callable[[Path], None] = lambda _: None
    """Make what is there before, and on the disk."""


# The ledger


def _count_epochs(folder: Path, acknowledge: Acknowledge) -> None:
    with closing(Ledger(f"sqlite:///{folder / 'ledger.db'}", FakeClock())) as ledger:
        for _ in range(3):
            number = ledger.next_epoch("gpt")
            acknowledge(f"number {number}")
            ledger.open_epoch("gpt", number, 0, "v1", ["m0"], "test")
            acknowledge(f"epoch {number}")


def _no_number_twice(folder: Path, acknowledged: Sequence[str]) -> None:
    given = [int(line.split()[1]) for line in acknowledged if line.startswith("number")]
    opened = {int(line.split()[1]) for line in acknowledged if line.startswith("epoch")}
    with closing(Ledger(f"sqlite:///{folder / 'ledger.db'}", FakeClock())) as ledger:
        assert opened <= {epoch.epoch for epoch in ledger.epochs("gpt")}
        assert ledger.next_epoch("gpt") > max(given, default=0)


def _a_job(folder: Path) -> None:
    with closing(Ledger(f"sqlite:///{folder / 'ledger.db'}", FakeClock())) as ledger:
        ledger.create()
        running_job(ledger)


# Checkpoints


def _copy_to_disk(folder: Path, acknowledge: Acknowledge) -> None:
    memory = Memory("m1", folder.with_name(f"{folder.name}-shm"), folder)
    for step in (1, 2, 3):
        path = write_shard(memory.own("toy"), step=step)
        durable.make_folder(memory.disk("toy"))
        disk.write(path, buffers.require_header(path), memory.disk("toy"), 1 << 30)
        acknowledge(f"step {step}")


def _newest_copy_is_whole(folder: Path, acknowledged: Sequence[str]) -> None:
    memory = Memory("m1", folder.with_name(f"{folder.name}-lost"), folder)
    held = {shard.step for shard in memory.shards() if shard.tier is Tier.DISK}
    for step in held:
        buffers.verify(memory.require("toy", 0, step)[0])
    steps = [int(line.split()[1]) for line in acknowledged]
    assert max(held, default=0) >= max(steps, default=0)


def _keep_plan(folder: Path, acknowledge: Acknowledge) -> None:
    write_metadata(folder, 1, "1.1", PLAN)
    acknowledge("plan")


def _take_plan(folder: Path, acknowledge: Acknowledge) -> None:
    given = folder.with_name(f"{folder.name}-given")
    given.write_bytes(PLAN)
    port = shard_port.ShardPort(Memory("m1", folder), "secret", "127.0.0.1")
    with closing(port):
        shard_client.push_metadata(port.address, "secret", "toy", "1.1", given)
    acknowledge("plan")


def _plan_is_whole(folder: Path, acknowledged: Sequence[str]) -> None:
    found = list(folder.rglob("metadata-*.pickle"))
    assert all(path.read_bytes() == PLAN for path in found)
    assert found or not acknowledged


def _commit_header(folder: Path, acknowledge: Acknowledge) -> None:
    for step in (1, 2, 3):
        write_shard(folder, step=step)
        acknowledge(f"step {step}")


def _newest_shard_is_whole(folder: Path, acknowledged: Sequence[str]) -> None:
    held = buffers.inventory(folder)
    for path, _ in held:
        buffers.verify(path)
    steps = [int(line.split()[1]) for line in acknowledged]
    assert max((header.step for _, header in held), default=0) >= max(steps, default=0)


# Code


def _sources(folder: Path) -> archive.Archive:
    source = folder.with_name(f"{folder.name}-source")
    (source / "lib").mkdir(parents=True, exist_ok=True)
    (source / "train.py").write_text("print('trains')")
    (source / "lib" / "model.py").write_text("layers = 2")
    return archive.pack(source)


def _check_out(folder: Path, acknowledge: Acknowledge) -> None:
    packed = _sources(folder)
    versions.place(packed.content, packed.version, folder / "gpt" / packed.version)
    acknowledge(packed.version)


def _checkout_is_whole(folder: Path, acknowledged: Sequence[str]) -> None:
    found = [path for path in folder.glob("gpt/*") if path.is_dir() and not path.name.startswith(".")]
    assert {path.name for path in found} >= set(acknowledged)
    for path in found:
        # What is there is taken as it is, and given to neighbours.
        assert archive.pack(path).version == path.name
        assert versions.packed(path).stat().st_size == len(archive.pack(path).content)


# The site


def _choose(folder: Path, acknowledge: Acknowledge) -> None:
    for port in (5000, 6000):
        envfile.remember(Settings(home=folder, port=port))
        acknowledge(str(port))


def _choice_stands(folder: Path, acknowledged: Sequence[str]) -> None:
    path = folder / "settings.env"
    lines = path.read_text().split() if path.exists() else []
    assert lines in ([], ["HOLDFAST_PORT=5000"], ["HOLDFAST_PORT=6000"])
    assert len(acknowledged) < 2 or lines == ["HOLDFAST_PORT=6000"]
    assert not acknowledged or lines


def _make_secret(folder: Path, acknowledge: Acknowledge) -> None:
    acknowledge(secret.create(folder / "secret"))


def _secret_stays(folder: Path, acknowledged: Sequence[str]) -> None:
    assert secret.create(folder / "secret") in (acknowledged or [secret.read(folder / "secret")])


def _name_machines(folder: Path, acknowledge: Acknowledge) -> None:
    for _ in range(2):
        acknowledge(RosterFile(folder).add(1)[0])


def _names_are_given_once(folder: Path, acknowledged: Sequence[str]) -> None:
    roster = RosterFile(folder).read()
    assert set(acknowledged) <= set(roster.names)
    assert all(roster.ever_had(name) for name in acknowledged)


def _evict(folder: Path, acknowledge: Acknowledge) -> None:
    LocalDriver(folder).evict("m0", Scope.CLUSTER, "Xid 79")
    acknowledge("m0")


def _stays_evicted(folder: Path, acknowledged: Sequence[str]) -> None:
    found = LocalDriver(folder).evicted("m0")
    assert found is None or found.reason == "Xid 79"
    assert found or not acknowledged


def _one_machine(folder: Path) -> None:
    (name,) = RosterFile(folder).add(1)
    (folder / "machines" / name).mkdir()


def _hold_node(folder: Path, acknowledge: Acknowledge) -> None:
    for number in (1, 2):
        file = RecordFile(folder)
        with file.changing() as record:
            file.write(record.with_machine(f"node{number}", HeldNode(job=number)))
        acknowledge(f"node{number}")


def _nodes_are_ours(folder: Path, acknowledged: Sequence[str]) -> None:
    assert set(acknowledged) <= set(RecordFile(folder).read().machines)


ALL = {
    "ledger": Work(("ledger",), _count_epochs, _no_number_twice, _a_job),
    "disk": Work(("disk",), _copy_to_disk, _newest_copy_is_whole),
    "plan": Work(("plan",), _keep_plan, _plan_is_whole),
    "peer-plan": Work(("peer-plan",), _take_plan, _plan_is_whole),
    "header": Work(("header",), _commit_header, _newest_shard_is_whole),
    "code": Work(("code", "archive"), _check_out, _checkout_is_whole),
    "settings": Work(("settings",), _choose, _choice_stands),
    "secret": Work(("secret",), _make_secret, _secret_stays),
    "roster": Work(("roster",), _name_machines, _names_are_given_once),
    "machine": Work(("machine",), _evict, _stays_evicted, _one_machine),
    "slurm": Work(("slurm",), _hold_node, _nodes_are_ours),
}
