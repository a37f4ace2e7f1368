"""Killed at every write, rename and commit of what must survive: nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from holdfast import failpoint
from holdfast.errors import SettingsError
from holdfast.failpoint import POINTS
from holdfast.storage.objects.s3 import S3Store
from tests.durability import s3_work, work
from tests.durability.killed import Forks, acknowledged, forks
from tests.storage.conftest import ACCESS_KEY, SECRET_KEY, moto_endpoint  # noqa: F401  (a fixture)

pytestmark = pytest.mark.torch

TURNS = (1, 2)
"""Which time it gets there. A work that gets there less often must be reached once."""


@dataclass(frozen=True)
class Bucket:
    """How a child reaches the store."""

    endpoint: str
    bucket: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY


@pytest.fixture(scope="module")
def forker() -> Iterator[Forks]:
    with forks() as started:
        yield started


def work_of(point: str, table: dict[str, work.Work]) -> str | None:
    """Name of the work that gets to a failpoint."""
    file = point.partition(".")[0]
    return next((name for name, each in table.items() if {file, point} & set(each.files)), None)


SECOND = {"s3.file": 3, "s3.part": 3, "s3.boxes": 2, "s3.metadata": 2, "s3.manifest": 2}
"""Where an upload is killed with one checkpoint acknowledged before: two ranks upload two."""
LOCAL = {point: name for point in POINTS if (name := work_of(point, work.ALL))}
IN_S3 = [point for point in POINTS if point not in LOCAL]


@pytest.mark.parametrize("point", LOCAL)
def test_killed_at_a_failpoint_nothing_acknowledged_is_lost(
    forker: Forks, tmp_path: Path, point: str
) -> None:
    """A real process with SIGKILL, the first and second time it gets there; what is left is whole."""
    each = work.ALL[LOCAL[point]]
    died = []
    for turn in TURNS:
        folder = tmp_path / str(turn)
        folder.mkdir()
        each.prepare(folder)
        died.append(forker.run(LOCAL[point], folder, f"{point}:{turn}"))
        each.check(folder, acknowledged(folder))
    assert died[0] == -signal.SIGKILL, f"{point} was never reached: no test gets there"
    assert set(died) <= {0, -signal.SIGKILL}


@pytest.mark.parametrize("point", IN_S3)
def test_killed_on_the_way_to_the_store_nothing_acknowledged_is_lost(
    forker: Forks,
    tmp_path: Path,
    moto_endpoint: str,  # noqa: F811
    point: str,
) -> None:
    """Complete checkpoints are whole, and the work is finished when it is done again."""
    where = Bucket(moto_endpoint, f"killed-{IN_S3.index(point)}")
    store = S3Store(**asdict(where))
    store.ensure_bucket()
    table = s3_work.all_work(store)
    name = work_of(point, table)
    assert name, f"no test gets to {point}"
    folder = tmp_path / "work"
    folder.mkdir()
    table[name].prepare(folder)
    died = forker.run(name, folder, f"{point}:{SECOND.get(point, 1)}", asdict(where))
    assert died == -signal.SIGKILL, f"{point} was never reached: no test gets there"
    lines = acknowledged(folder)
    assert bool(lines) == (point in SECOND)
    table[name].check(folder, lines)


def test_a_name_that_is_no_failpoint_is_refused() -> None:
    """It would never be reached, and the test that named it would show nothing."""
    with pytest.raises(SettingsError, match=r"HOLDFAST_FAILPOINT = 'disk.cpoied'.*disk.written"):
        failpoint.arm("disk.cpoied")


def test_the_environment_arms_it() -> None:
    """As for services and agents that are started with it."""
    code = (
        "from holdfast import failpoint; failpoint.here('ledger.committed'); failpoint.here('ledger.flushed')"
    )
    env = os.environ | {failpoint.ENV: "ledger.flushed"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert ended.returncode == -signal.SIGKILL
