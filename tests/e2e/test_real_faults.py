"""Real faults of the kernel and of S3 underneath a real job: the right class and playbook, no innocent machine."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError
from holdfast.inject import cgroup
from holdfast.inject.lasting import lasting
from holdfast.models.alert import AlertKind, IncidentClass
from holdfast.models.job import JobState
from holdfast.paths import machine_dir
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for
from tests.silent_mount import silent

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.geteuid() != 0, reason="faults of the kernel take root"),
]
SCRIPT = """\
import os, time
from pathlib import Path
import torch, torch.distributed as dist
import holdfast

dist.init_process_group("gloo")
session = holdfast.Session()
model = torch.nn.Linear(8, 8)
start = session.restore({"model": model})
folder = Path(os.environ["HOLDFAST_MACHINE_DIR"]) / "data"
folder.mkdir(exist_ok=True)
held = []


def extra(step):
    EXTRA


for step in range(start + 1, 100_000):
    extra(step)
    dist.all_reduce(model(torch.ones(8)).detach())
    time.sleep(0.05)
    session.step(step, loss=1.0)
    session.checkpoint({"model": model})
"""


def code(folder: Path, extra: str) -> Path:
    """The folder of a training script that does something besides, each step."""
    folder.mkdir()
    body = textwrap.indent(textwrap.dedent(extra).strip(), "    ").lstrip()
    (folder / "train.py").write_text(SCRIPT.replace("EXTRA", body))
    return folder


def submit(site: Site, name: str, tmp_path: Path, extra: str = "pass") -> tuple[str, ...]:
    return site.submit(name, code_dir=code(tmp_path / "code", extra), script="train.py").machines


def kinds(site: Site, machine: str) -> set[AlertKind]:
    return {alert.kind for alert in site.ledger.alerts_of(machine)}


def control_group(controller: str) -> None:
    try:
        cgroup.parent_of(controller)
    except UnavailableError as error:
        pytest.skip(str(error))


def test_a_disk_that_turns_read_only_costs_its_machine(site: Site, name: str, tmp_path: Path) -> None:
    """Detected by the agent's look at its mounts, while the job trains, without any other report."""
    before = submit(site, name, tmp_path)
    with lasting(site.home, "readonly-disk", before[1]):
        incident = site.wait_recovered(name)
    assert incident.incident_class is IncidentClass.STORAGE_FAULT, site.describe(name)
    assert site.evicted() == {before[1]}, site.describe(name)
    assert before[0] in site.job(name).machines


def test_a_mount_whose_server_never_answers_costs_its_machine(site: Site, name: str, tmp_path: Path) -> None:
    """A process that touches it is stuck in the kernel; neither the agent's look nor the eviction is."""
    before = submit(site, name, tmp_path)
    with silent(machine_dir(site.home, before[1]) / "shared"):
        incident = site.wait_recovered(name)
        assert incident.incident_class is IncidentClass.STORAGE_FAULT, site.describe(name)
        assert site.evicted() == {before[1]}, site.describe(name)
    assert before[0] in site.job(name).machines


def test_a_disk_that_fills_up_under_a_script_costs_its_machine(site: Site, name: str, tmp_path: Path) -> None:
    """No space left on device, beside a file system that is full for sure: no bug of the script."""
    before = submit(site, name, tmp_path, '(folder / f"log-{step}").write_bytes(bytes(4096))')
    with lasting(site.home, "full-disk", before[0]):
        incident = site.wait_recovered(name)
    assert incident.incident_class is IncidentClass.STORAGE_FAULT, site.describe(name)
    assert site.evicted() == {before[0]}, site.describe(name)


def test_a_rank_killed_for_want_of_memory_is_tried_again(site: Site, name: str, tmp_path: Path) -> None:
    """The kernel's kill and its count of them: a retry in place, and no machine is touched.

    A machine of the local driver has no kernel log of its own: its agent looks at the count when a rank ends.
    """
    control_group("memory")
    fresh = "import mmap\nwith mmap.mmap(-1, 8 << 20) as pages:\n    pages.write(bytes(8 << 20))"
    before = submit(site, name, tmp_path, fresh)
    with lasting(site.home, "memory-pressure", before[1]):
        incident = site.wait_recovered(name)
    assert AlertKind.OOM_KILL in kinds(site, before[1])
    assert incident.incident_class is IncidentClass.HOST_PRESSURE, site.describe(name)
    assert site.evicted() == set(), site.describe(name)
    assert site.job(name).machines == before


def test_a_rank_that_fails_for_want_of_processor_time_is_tried_again(
    site: Site, name: str, tmp_path: Path
) -> None:
    """A quota leaves the machine so little that its data come too late: the host is short, not the code wrong."""
    control_group("cpu")
    loader = """
        begun = time.monotonic()
        for _ in range(40):
            torch.ones(256, 256) @ torch.ones(256, 256)
        held.append(time.monotonic() - begun)
        usual = sorted(held[:30])[len(held[:30]) // 2]
        if len(held) < 30 or held[-1] < 3 * usual:
            since = extra.since = time.monotonic()
        elif time.monotonic() - extra.since > 15:
            raise RuntimeError("DataLoader timed out after 15 seconds")
    """
    before = submit(site, name, tmp_path, loader)
    site.wait_step(name, 40)
    with lasting(site.home, "slow-machine", before[1], percent=60):
        incident = wait_for("it fails", lambda: site.incident(name))
        wait_for(
            lambda: f"the quota is seen: {kinds(site, before[1])}",
            lambda: AlertKind.CPU_PRESSURE in kinds(site, before[1]),
        )
    recovered = site.wait_recovered(name)
    assert incident.id == recovered.id
    assert recovered.incident_class is IncidentClass.HOST_PRESSURE, site.describe(name)
    assert site.evicted() == set(), site.describe(name)
    assert site.job(name).machines == before


def test_an_s3_that_answers_503_touches_no_machine(site: Site, name: str, tmp_path: Path) -> None:
    """A script that reads its data there falls over it: the service is waited for, and the job goes on."""
    read = f"""
        import boto3
        if not held:
            keys = {{"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}}
            from botocore.config import Config
            held.append(boto3.client("s3", endpoint_url={site.settings.s3!r}, config=Config(
                retries={{"total_max_attempts": 1}}), **keys))
        try:
            held[0].list_objects_v2(Bucket={site.settings.s3_bucket!r}, MaxKeys=1)
        except held[0].exceptions.ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
                raise
    """
    before = submit(site, name, tmp_path, read)
    with lasting(site.home, "s3-503", before[0]):
        incident = wait_for("it falls over it", lambda: site.incident(name))
        wait_for("it is waited for", lambda: site.ledger.actions(incident.id))
    site.wait_well()
    recovered = site.wait_recovered(name, timeout_s=200)
    assert recovered.incident_class is IncidentClass.EXTERNAL_SERVICE, site.describe(name)
    assert site.evicted() == set(), site.describe(name)
    assert site.job(name).machines == before
    assert site.job(name).state is JobState.RUNNING
