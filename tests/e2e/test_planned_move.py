"""Planned moves with real processes: no step done again, none lost, the same weights to the last bit."""

from __future__ import annotations

from pathlib import Path

from holdfast.models.alert import IncidentClass
from holdfast.models.machine import MachineState
from tests.e2e.site import EXAMPLES, Site
from tests.e2e.test_playbooks import digest
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


def recording(folder: Path, steps: Path) -> Path:
    """The example, which writes down every step that it completes, by rank."""
    folder.mkdir()
    text = (EXAMPLES / "train_gpt.py").read_text()
    (folder / "train_gpt.py").write_text(
        text.replace('if __name__ == "__main__":\n', RECORDED.replace("STEPS", str(steps)))
    )
    return folder


def test_job_leaves_a_machine_without_doing_a_step_again(site: Site, name: str, tmp_path: Path) -> None:
    """Each rank completes each step once; the weights are those of a run that was left alone."""
    steps, last = 90, tmp_path / "steps"
    calm, moved = tmp_path / "calm.pt", tmp_path / "moved.pt"
    site.submit(f"{name}-calm", "--out", str(calm), steps=steps, spare=0)
    site.wait_done(f"{name}-calm")

    offences = site.ledger.offences(0.0)
    site.submit(
        name,
        *("--out", str(moved)),
        steps=steps,
        code_dir=recording(tmp_path / "code", last),
        every_step=True,
    )
    # The second one takes along rank 0, where the ranks meet, to the machine that was left before.
    for number, slot in ((1, 1), (2, 0)):
        machines = site.job(name).machines
        answer = site.http.post(f"/v1/jobs/{name}/move", json={"machine": machines[slot], "reason": "a test"})
        assert answer.is_success, answer.text
        incident = site.wait_recovered(name, number)
        assert incident.incident_class is IncidentClass.PLANNED_MOVE, site.told(name)
        assert dict(site.done(incident)) == MOVED, site.told(name)
        after = site.job(name).machines
        assert [slot] == [at for at in (0, 1) if after[at] != machines[at]], site.told(name)
        wait_for("it stands by again", lambda: _stands_by(site, machines[slot]))  # noqa: B023
    assert site.evicted() == set()
    assert site.ledger.offences(0.0) == offences
    site.wait_done(name)
    for rank in (0, 1):
        told = [int(line) for line in Path(f"{last}-{rank}").read_text().split()]
        assert told == list(range(1, steps + 1)), site.told(name)
    assert digest(moved) == digest(calm)


def _stands_by(site: Site, machine: str) -> bool:
    return site.ledger.machine(machine).state is MachineState.STANDBY
