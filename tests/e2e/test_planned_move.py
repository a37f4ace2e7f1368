"""Planned moves with real processes: no step done again, none lost, the same weights to the last bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.models.machine import MachineState
from tests.e2e.pace import Paced, calm, digest
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

MOVED = {
    "choose": 1,
    "bring": 1,
    "hold": 1,
    "pause": 1,
    "swap": 1,
    "start": 1,
    "verify": 1,
    "hand_back": 1,
    "replenish": 1,
}
RECORDED = """
def _record(session_step):
    def step(self, number, *args, **kwargs):
        with open(f"STEPS-{os.environ['RANK']}", "a") as file:
            file.write(f"{number}\\n")
        return session_step(self, number, *args, **kwargs)
    return step


holdfast.Session.step = _record(holdfast.Session.step)

if __name__ == "__main__":
"""


def record(script: Path, steps: Path) -> None:
    """Have the example write down every step that it completes, by rank."""
    text = script.read_text()
    script.write_text(text.replace('if __name__ == "__main__":\n', RECORDED.replace("STEPS", str(steps))))


def recorded(last: Path, rank: int) -> list[int]:
    """Return the steps that a rank completed, in their order."""
    return [int(line) for line in Path(f"{last}-{rank}").read_text().split()]


def each_step_once(site: Site, name: str, last: Path, steps: int) -> None:
    """Check that each rank completed each step once, as :func:`record` has them in ``last``."""
    for rank in (0, 1):
        assert recorded(last, rank) == list(range(1, steps + 1)), site.describe(name)


def test_job_leaves_a_machine_without_doing_a_step_again(site: Site, name: str, tmp_path: Path) -> None:
    """Each rank completes each step once; the weights are those of a run that was left alone."""
    steps, last = 120, tmp_path / "steps"
    moved, paced = tmp_path / "moved.pt", Paced(tmp_path)
    record(paced.script, last)
    offences = site.ledger.offences(0.0)
    site.submit(
        name,
        *("--out", str(moved)),
        steps=steps,
        code_dir=paced.code,
        every_step=True,
    )
    # The second one takes along rank 0, where the ranks meet, to the machine that was left before.
    for number, slot in ((1, 1), (2, 0)):
        machines = site.job(name).machines
        answer = site.http.post(f"/v1/jobs/{name}/move", json={"machine": machines[slot], "reason": "a test"})
        assert answer.is_success, answer.text
        incident = site.wait_recovered(name, number)
        assert incident.incident_class is IncidentClass.PLANNED_MOVE, site.describe(name)
        assert dict(site.done(incident)) == MOVED, site.describe(name)
        after = site.job(name).machines
        assert [slot] == [at for at in (0, 1) if after[at] != machines[at]], site.describe(name)
        wait_for("it stands by again", lambda: _stands_by(site, machines[slot]))  # noqa: B023
    assert site.evicted() == set()
    assert site.ledger.offences(0.0) == offences
    paced.hurry()
    site.wait_done(name)
    each_step_once(site, name, last, steps)
    assert digest(moved) == calm(site, steps)


def test_a_script_that_saves_now_and_then_is_moved_after_a_step_that_it_saved(
    site: Site, name: str, tmp_path: Path
) -> None:
    """After steps 7, 17, 27: ranks that are held anywhere else would do up to ten steps again, and are not moved."""
    steps, last = 120, tmp_path / "steps"
    moved, paced = tmp_path / "moved.pt", Paced(tmp_path)
    record(paced.script, last)
    text, call = paced.script.read_text(), "session.checkpoint(state, last=step == args.steps)"
    assert text.count(call) == 1
    paced.script.write_text(text.replace(call, f"step % 10 == 7 and {call}"))
    machines = site.submit(
        name, *("--out", str(moved)), steps=steps, code_dir=paced.code, every_step=True, first=18
    ).machines
    answer = site.http.post(f"/v1/jobs/{name}/move", json={"machine": machines[1], "reason": "a test"})
    assert answer.is_success, answer.text
    incident = site.wait_recovered(name)
    assert dict(site.done(incident)) == MOVED, site.describe(name)
    assert site.job(name).machines[0] == machines[0] != site.job(name).machines[1] != machines[1]
    paced.hurry()
    site.wait_done(name)
    each_step_once(site, name, last, steps)
    assert digest(moved) == calm(site, steps)


@pytest.mark.thorough
def test_a_job_that_limits_what_saves_cost_is_recovered_and_moved(
    site: Site, name: str, tmp_path: Path
) -> None:
    """Few steps are saved: a killed rank costs those since; a move costs none, since its boundary is saved."""
    steps, last = 160, tmp_path / "steps"
    moved, paced = tmp_path / "moved.pt", Paced(tmp_path)
    record(paced.script, last)
    machines = site.submit(
        name, *("--out", str(moved)), steps=steps, code_dir=paced.code, first=40, max_overhead=0.01
    ).machines
    os.kill(site.pids(name)[1], signal.SIGKILL)
    killed = site.wait_recovered(name)
    assert killed.incident_class is IncidentClass.JOB_CRASH, site.describe(name)
    before = len(recorded(last, 0))
    answer = site.http.post(f"/v1/jobs/{name}/move", json={"machine": machines[0], "reason": "a test"})
    assert answer.is_success, answer.text
    incident = site.wait_recovered(name, 2)
    assert dict(site.done(incident)) == MOVED, site.describe(name)
    paced.hurry()
    site.wait_done(name)
    after = recorded(last, 0)[before:]
    assert after == list(range(after[0], steps + 1)), "no step twice since the rank was killed"
    assert digest(moved) == calm(site, steps)


def _stands_by(site: Site, machine: str) -> bool:
    return site.ledger.machine(machine).state is MachineState.STANDBY
