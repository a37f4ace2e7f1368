"""Jobs that read files: killed, resized and resumed, they train on each sample exactly once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from holdfast.inject import service
from tests.e2e import data_train, elastic_train
from tests.e2e.site import Site
from tests.e2e.test_elastic import HERE, SIZES, require_each_sample_once, scale

STEPS = 120


def write(folder: Path) -> None:
    """Two sources by the hour; together as many samples as the steps have, each with its number."""
    assert data_train.BATCH == elastic_train.BATCH
    number = 0
    for source, share in (("web", 0.6), ("code", 0.4)):
        total, hours = round(STEPS * data_train.BATCH * share), 6
        for hour in range(hours):
            path = folder / source / "dt=2026-11-24" / f"hour={hour:02}" / "part.jsonl"
            path.parent.mkdir(parents=True)
            count = total * (hour + 1) // hours - total * hour // hours
            path.write_text(
                "".join(json.dumps({"id": each}) + "\n" for each in range(number, number + count))
            )
            number += count
    assert number == STEPS * data_train.BATCH


def test_each_sample_is_trained_on_once_whatever_is_killed(site: Site, name: str, tmp_path: Path) -> None:
    """A rank is killed, the job shrinks and grows: the count is kept by the ranks' own notes."""
    write(tmp_path / "data")
    notes = tmp_path / "notes"
    notes.mkdir()
    site.submit(
        name,
        "--data",
        str(tmp_path / "data"),
        "--notes",
        str(notes),
        machines=3,
        sizes=SIZES,
        spare=0,
        code_dir=HERE,
        script="data_train.py",
    )
    site.wait_more_steps(name, 5)
    os.kill(site.pids(name)[1], signal.SIGKILL)
    site.wait_recovered(name, 1)
    for number, machines in enumerate((2, 3), start=2):
        site.wait_more_steps(name, 5)
        scale(site, name, machines)
        site.wait_recovered(name, number)
        assert site.job(name).spec.world_size == machines
    (notes / "hurry").touch()
    site.wait_done(name)
    require_each_sample_once(site, name, notes, STEPS)


@pytest.mark.thorough
def test_leased_samples_are_trained_on_once_whatever_is_killed(site: Site, name: str, tmp_path: Path) -> None:
    """The rank with the book, another, a machine, and the control plane while splits are leased."""
    write(tmp_path / "data")
    notes = tmp_path / "notes"
    notes.mkdir()
    options = ("--data", str(tmp_path / "data"), "--notes", str(notes))
    site.submit(name, *options, machines=2, code_dir=HERE, script="lease_train.py")
    for number, rank in enumerate((0, 1), start=1):
        site.wait_more_steps(name, 8)
        for each in ("gateway", "worker", "prefect"):
            service.kill(site.settings, each)
        site.wait_more_steps(name, 8)  # training goes on meanwhile
        site.wait_well()  # a recovery without Prefect has tests of its own
        os.kill(site.pids(name)[rank], signal.SIGKILL)
        site.wait_recovered(name, number, 240)
    site.fault("kill-machine", site.job(name).machines[0])
    site.wait_recovered(name, 3, 240)
    (notes / "hurry").touch()
    site.wait_done(name)
    require_each_sample_once(site, name, notes, STEPS)
