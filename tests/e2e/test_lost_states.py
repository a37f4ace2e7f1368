"""States that are gone, and a state that leads to the same crash whenever it is restored."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import JobState
from tests.e2e.site import EXAMPLES, FOR_EVER, Site
from tests.e2e.test_limits import wait_closed
from tests.e2e.waiting import wait_for

pytestmark = pytest.mark.thorough

FUSE = '''
class Fuse:
    """Is lit at step 12. Rank 0 dies at the first step after a lit one was restored."""
    def __init__(self):
        self.lit = self.restored = False
    def state_dict(self):
        return {"lit": self.lit}
    def load_state_dict(self, state):
        self.lit = self.restored = state["lit"]
'''


def test_a_job_whose_states_are_all_lost_asks_before_it_starts_from_scratch(site: Site, name: str) -> None:
    """Both machines lose memory and disk, and nothing was in S3 yet: step 0 is a person's decision."""
    before = site.submit(name, spare=2, s3_every=FOR_EVER).machines
    site.wait_more_steps(name, 10)
    site.kill_machines(*before)
    incident = wait_closed(site, name)
    assert incident.state is IncidentState.NEEDS_HUMAN, site.describe(name)
    assert f"holdfast resume {name} --from-scratch" in incident.summary
    assert [each.epoch for each in site.epochs(name)] == [1]
    assert site.job(name).state is JobState.FAILED

    answer = site.http.post(f"/v1/jobs/{name}/resume", json={"from_scratch": True})
    assert answer.is_success, answer.text
    wait_for("a new epoch", lambda: len(site.epochs(name)) == 2)
    site.wait_more_steps(name)
    assert site.epochs(name)[1].start_step == 0


def fused(folder: Path, lit_from: int) -> Path:
    """The example with a fuse that is lit at a step; returns the folder of the code."""
    source = (EXAMPLES / "train_gpt.py").read_text()
    for old, new in (
        ("def main() -> None:", f"{FUSE}\n\ndef main() -> None:"),
        ("    state = {", '    fuse = Fuse()\n    state = {"fuse": fuse, '),
        (
            "        session.step(step,",
            "        if fuse.restored and dist.get_rank() == 0: os.kill(os.getpid(), 11)\n"
            f"        fuse.lit = fuse.lit or step >= {lit_from}\n"
            "        session.step(step,",
        ),
    ):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    (folder / "train_gpt.py").write_text(source)
    return folder


SLOWLY = ("--step-seconds", "0.3")


def test_a_state_that_crashes_whenever_it_is_restored_is_left_behind(
    site: Site, name: str, tmp_path: Path
) -> None:
    """The newest state is whole, and the job dies right after each restore of it: with an older one it goes on."""
    code = fused(tmp_path, 12)
    machine = site.submit(name, *SLOWLY, code_dir=code, s3_every=10, memory_every_steps=10).machines[0]
    site.wait_step(name, 22)
    site.fault("kill-rank", machine)

    incident = site.wait_recovered(name, timeout_s=240)
    assert incident.incident_class is IncidentClass.JOB_CRASH
    assert "abandoned" in incident.summary, site.describe(name)
    *lit, good = [each.start_step for each in site.epochs(name)][1:]
    assert good == 10, site.describe(name)
    assert lit == [20, 20], site.describe(name)
    assert site.evicted() == set()


@pytest.mark.timeout(900)
def test_a_job_all_of_whose_states_crash_is_never_begun_from_zero(
    site: Site, name: str, tmp_path: Path
) -> None:
    """Each state there is leads to the same crash: they are tried down the list, then a person is asked."""
    code = fused(tmp_path, 1)
    machine = site.submit(name, *SLOWLY, code_dir=code, s3_every=10, memory_every_steps=10).machines[0]
    site.wait_step(name, 22)
    site.fault("kill-rank", machine)

    def asked() -> bool:
        numbers = itertools.takewhile(lambda number: site.incident(name, number), itertools.count(1))
        found = [site.incident(name, number) for number in numbers]
        return bool(found and found[-1] and found[-1].state is IncidentState.NEEDS_HUMAN)

    wait_for(lambda: site.describe(name), asked, 600)
    first, *later = [each.start_step for each in site.epochs(name)]
    assert first == 0
    assert 0 not in later, site.describe(name)
    assert later[:2] == [20, 20], site.describe(name)
    assert set(later) == {20, 10}, site.describe(name)
    assert later == sorted(later, reverse=True), site.describe(name)
    assert site.job(name).state is JobState.FAILED, site.describe(name)
