"""Checkpoints that are left when several machines go at once; afterwards the backup is whole again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.drivers import processes
from holdfast.drivers.local import LocalDriver
from holdfast.models.alert import Incident, IncidentClass
from holdfast.models.checkpoint import RemoteCheckpoint, Tier
from holdfast.models.job import Parallelism
from holdfast.paths import machine_dir, shm_dir
from holdfast.policies.restore.placement import backups
from holdfast.storage.checkpoints.save.buffers import inventory
from tests.e2e.site import FOR_EVER, Site
from tests.e2e.waiting import wait_for

GRID = Parallelism(pp=2)  # with four ranks: pipelines 0-2 and 1-3, replicas 0-1 and 2-3
DAMAGED = "__0_0.distcp"
BACKUP = backups(4, 1, GRID)


def started(site: Site, incident: Incident) -> dict[str, Any]:
    """The sources of the restore at the playbook's start."""
    (start,) = [action for action in site.ledger.actions(incident.id) if action.kind == "start"]
    return dict(start.result or {})


@pytest.mark.thorough
def test_a_whole_pipeline_group_is_lost(site: Site, name: str) -> None:
    """Every copy lies outside it: no step is lost and S3 is not read; then every machine has a whole backup again."""
    assert BACKUP.crosses_groups
    before = site.submit(
        name, machines=4, spare=2, s3_every=FOR_EVER, parallelism=GRID, every_step=True
    ).machines
    site.kill_machines(*(before[slot] for slot in (0, 2)))
    incident = site.wait_recovered(name, timeout_s=180)
    assert started(site, incident)["tier"] == Tier.MEMORY
    first, second = site.epochs(name)[0], site.epochs(name)[-1]
    assert (first.last_step or 0) - 1 <= second.start_step
    after = site.job(name).machines
    assert not {before[0], before[2]} & set(after)

    def whole() -> bool:
        held = {slot: site.agent(machine) for slot, machine in enumerate(after)}
        return all(
            any(
                (shard.rank, shard.tier, shard.epoch) == (slot, Tier.PEER, second.epoch)
                for shard in (held[peer].shards if held[peer] else ())  # type: ignore[union-attr]
                if shard.job == name
            )
            for slot, peer in BACKUP.mapping.items()
        )

    wait_for("every machine's shards lie on its new peer", whole)
    # No checkpoint was due: the step in memory was saved because ranks died.
    saved = wait_for("the triggered save is in S3", lambda: site.ledger.checkpoints(name))
    assert saved[0].step <= second.start_step


@pytest.mark.thorough
def test_two_copies_in_all_are_enough_for_a_rank_and_for_a_machine(site: Site, name: str) -> None:
    """One on the machine and one on its peer: a killed rank costs a few steps, and so does a lost machine."""
    before = site.submit(name, s3_every=FOR_EVER, buffers=1, peer_buffers=1).machines
    for fault in ("kill-rank", "kill-machine"):
        for machine in site.job(name).machines:
            files = [path.name for path in (shm_dir(site.home, machine) / "own" / name).glob("*.shard")]
            assert len(files) == 1, files
        site.fault(fault, before[1])
        incident = site.wait_recovered(name, timeout_s=180)
        assert started(site, incident)["tier"] == Tier.MEMORY
        *_, last, new = site.epochs(name)
        assert new.start_step >= (last.last_step or 0) - 5, site.describe(name)
        site.wait_more_steps(name)


def test_both_machines_of_a_pair_are_lost(site: Site, name: str) -> None:
    """The shards of two ranks are nowhere in memory: the newest checkpoint in S3 is taken, and these read it there.

    The others too, unless the machines were lost so soon after that checkpoint that they still hold its step.
    """
    before = site.submit(name, machines=4, spare=2, s3_every=5, parallelism=GRID).machines
    kept = wait_for("a checkpoint in S3", lambda: site.ledger.checkpoints(name))
    assert BACKUP.mapping[0] == 3
    site.kill_machines(*(before[slot] for slot in (0, BACKUP.mapping[0])))
    incident = site.wait_recovered(name, timeout_s=180)
    start = started(site, incident)
    from_s3 = re.search(
        r"rank ([\d, ]+) from s3: no machine has its shard of this step", "\n".join(start["restore"])
    )
    # Of the survivors one may hold the step still while the other's memory has gone on.
    assert start["tier"] == Tier.S3 or (from_s3 and {"0", "3"} <= {*from_s3[1].split(", ")}), start
    restored = site.epochs(name)[-1].start_step
    assert restored >= kept[0].step
    assert restored in {each.step for each in site.ledger.checkpoints(name)}


@pytest.mark.thorough
def test_the_newest_checkpoint_in_s3_is_damaged(site: Site, name: str) -> None:
    """One flipped byte: refused by name and marked, the next older step is taken, and that is the end of it."""
    before = site.submit(name, machines=4, spare=2, s3_every=50, parallelism=GRID).machines
    newest, older = wait_for("two checkpoints in S3", lambda: two(site.ledger.checkpoints(name)))
    flip(site, newest.key)
    site.kill_machines(*(before[slot] for slot in (0, BACKUP.mapping[0])))
    incident = site.wait_recovered(name, timeout_s=240)

    _, refusing, going_on = site.epochs(name)
    assert (refusing.start_step, going_on.start_step) == (newest.step, older.step)
    assert site.attempts(incident) == 1, site.describe(name)
    assert site.done(incident)["start"] == site.done(incident)["verify"] == 2
    reasons = {each.step: each.suspect_reason for each in site.ledger.checkpoints(name) if each.suspect}
    assert reasons.keys() == {newest.step}
    assert f"job '{name}' step {newest.step} in S3" in reasons[newest.step]
    assert DAMAGED in reasons[newest.step]
    assert site.store.exists(f"{newest.key}suspect.json")
    site.wait_more_steps(name)
    assert [each.epoch for each in site.epochs(name)] == [1, 2, 3]
    assert [each.id for each in site.ledger.incidents(job=name)] == [incident.id]


@pytest.mark.thorough
def test_all_machines_reboot_and_go_on_from_their_disks(site: Site, name: str) -> None:
    """Processes and memory are gone on all of them, S3 has nothing: the newest step that all disks have is taken."""
    driver = site.driver
    assert isinstance(driver, LocalDriver)
    before = site.submit(name, s3_every=FOR_EVER, disk_every=10).machines
    wait_for("a step on both disks", lambda: common_step(site, name))
    gateway = site.service("gateway")
    with site.unsupervised():
        gateway.suspend()  # a power cut takes it along; it wakes when the machines are back
        try:
            for machine in before:
                processes.kill_all(machine_dir(site.home, machine))
                shutil.rmtree(shm_dir(site.home, machine))
            newest = common_step(site, name)
            for machine in before:
                driver._boot(machine)
            wait_for("the agents register", lambda: all(agent_registers(site, each) for each in before))
        finally:
            gateway.resume()
    incident = site.wait_recovered(name, timeout_s=240)

    assert incident.incident_class is IncidentClass.JOB_CRASH, site.describe(name)
    assert site.job(name).machines == before
    assert site.evicted() == set()
    restored = started(site, incident)
    assert restored["step"] == newest > 0
    assert [each for each in restored["restore"] if "from disk:" in each], restored
    assert [each.epoch for each in site.epochs(name)] == [1, 2]
    site.wait_more_steps(name)


def agent_registers(site: Site, machine: str) -> bool:
    """Whether the machine has an agent that is talking to the gateway, which may be frozen."""
    agent = processes.find_agent(machine_dir(site.home, machine))
    if agent is None:
        return False
    port = int(site.settings.gateway.rpartition(":")[2])
    return any(each.raddr and each.raddr.port == port for each in agent.net_connections())


def disk_of(site: Site, machine: str, job: str) -> Path:
    """Where a machine has a job's shards on its disk."""
    return machine_dir(site.home, machine) / "ckpt" / "disk" / job


def common_step(site: Site, name: str) -> int:
    """The newest step that all of a job's disks have; 0: there is none."""
    held = [
        {header.step for _, header in inventory(disk_of(site, machine, name))}
        for machine in site.job(name).machines
    ]
    return max(set.intersection(*held), default=0)


def two(checkpoints: list[RemoteCheckpoint]) -> list[RemoteCheckpoint] | None:
    """The newest two, newest first, once there are two."""
    return checkpoints[:2] if len(checkpoints) >= 2 else None


def flip(site: Site, key: str) -> None:
    """Change one bit in the middle of a part."""
    where = f"{key}{DAMAGED}"
    data = bytearray(site.store.get(where))
    data[len(data) // 2] ^= 1
    site.store.put(where, bytes(data))
