"""A job that trains, breaks and recovers in memory, one step a look."""

from __future__ import annotations

from typing import Any

from holdfast.clock import FakeClock
from holdfast.demo.faults import ScheduledFault
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState

CLASS_OF = {
    "kill-rank": IncidentClass.JOB_CRASH,
    "kill-machine": IncidentClass.MACHINE_FAULT,
    "hang-rank": IncidentClass.JOB_HANG,
}
KILL_RANK = ScheduledFault(
    name="kill-rank", title="a rank dies", expected=IncidentClass.JOB_CRASH, slot=1, local_rank=1
)
KILL_MACHINE = ScheduledFault(
    name="kill-machine",
    title="a machine dies",
    expected=IncidentClass.MACHINE_FAULT,
    slot=0,
    costs_machine=True,
)


def incident(number: int, kind: IncidentClass, at: float, **changes: Any) -> Incident:
    return Incident(
        id=f"demo-1-{number}",
        job="demo-1",
        incident_class=kind,
        state=changes.pop("state", IncidentState.OPEN),
        epoch=number,
        detected_at=at,
        opened_at=at,
        **changes,
    )


def action(key: str, begun_at: float, done_at: float | None) -> Action:
    return Action(
        incident_id="demo-1-1",
        key=key,
        kind=key.partition(":")[0],
        state=ActionState.DONE if done_at else ActionState.INTENT,
        begun_at=begun_at,
        done_at=done_at,
    )


class World:
    """Answers as the gateway does. Each ``status`` is one step of training, or a quarter of a recovery."""

    def __init__(self, steps: int = 1000) -> None:
        self.clock = FakeClock()
        self.steps, self.step, self.epoch, self.state, self.standbys = steps, 1, 1, "running", 2
        self.machines = ["m0", "m1", "m2", "m3"]
        self.all_incidents: list[Incident] = []
        self.injected: list[tuple[str, str, int | None]] = []
        self.heals = True
        self.step_when_injected: list[int] = []
        self._looks_to_heal = 0

    def inject(self, fault: str, machine: str, rank: int | None) -> float:
        self.injected.append((fault, machine, rank))
        self.step_when_injected.append(self.step)
        number = len(self.all_incidents) + 1
        self.all_incidents.append(incident(number, CLASS_OF[fault], self.clock.now() + 0.1, machine=machine))
        self.state, self._looks_to_heal = "recovering", 4
        return self.clock.now()

    def status(self) -> dict[str, Any]:
        self._advance()
        return {
            "jobs": [
                {
                    "name": "demo-1",
                    "state": self.state,
                    "epoch": self.epoch,
                    "step": self.step,
                    "machines": self.machines,
                }
            ],
            "machines": [{"name": f"s{n}", "state": "standby"} for n in range(self.standbys)],
        }

    def incidents(self, job: str | None = None, state: str | None = None) -> list[Incident]:
        return list(reversed(self.all_incidents))

    def _advance(self) -> None:
        if self.state == "running":
            self.step += 1
            if self.step >= self.steps:
                self.state = "done"
        elif self.state == "recovering" and self.heals:
            self._looks_to_heal -= 1
            if self._looks_to_heal == 0:
                self._heal()

    def _heal(self) -> None:
        self.state, self.epoch = "running", self.epoch + 1
        changes = {"state": IncidentState.RECOVERED, "recovered_at": self.clock.now()}
        self.all_incidents[-1] = self.all_incidents[-1].model_copy(update=changes)
