"""The ledger's record of one incident, and the inputs of its decisions that are missing there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from holdfast.models.alert import Alert, AlertKind, Incident
from holdfast.models.history import Action, Epoch
from holdfast.models.job import Job
from holdfast.models.wait import Wait
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.alerts import RecordedAlert
from holdfast.storage.ledger.inputs import OPENED, taken_up
from holdfast.storage.ledger.rewind import Then

_MOST_ALERTS = 2000
_AT_OPENING = ("opened", "waits")
"""Outcomes of the alerts that opened an incident."""


@dataclass(frozen=True)
class Record:
    """One incident."""

    incident: Incident
    actions: tuple[Action, ...]
    epochs: tuple[Epoch, ...]
    """All epochs of its job."""
    wait: Wait | None
    inputs: Mapping[str, Mapping[str, Any]]
    alerts: tuple[RecordedAlert, ...]
    """Alerts of the incident in order of arrival, oldest first."""
    meanwhile: tuple[RecordedAlert, ...] = ()
    """All alerts that arrived while it was open."""
    lacks: list[str] = field(default_factory=list)
    """Descriptions of what was not recorded."""

    @classmethod
    def read(cls, ledger: Ledger, incident_id: str) -> Record:
        """Read the record of an incident.

        Raises:
            UnknownError: no such incident.
        """
        incident = ledger.incident(incident_id)
        return cls(
            incident=incident,
            actions=tuple(ledger.actions(incident_id)),
            epochs=tuple(ledger.epochs(incident.job)),
            wait=ledger.last_wait(incident_id),
            inputs=ledger.inputs(incident_id),
            alerts=tuple(reversed(ledger.alerts(incident_id, _MOST_ALERTS))),
            meanwhile=tuple(ledger.alerts_between(incident.opened_at, incident.closed_at or float("inf"))),
        )

    @property
    def by_hand(self) -> bool:
        """Whether a person opened it and named its class."""
        return OPENED not in self.inputs and all(a.kind is AlertKind.MANUAL for a in self.incident.alerts[:1])

    @property
    def opened_by(self) -> list[Alert]:
        """Alerts for which the incident was opened."""
        known = self.inputs.get(OPENED, {}).get("alerts")
        if known is None:
            known = [each.key for each in self.alerts if each.outcome in _AT_OPENING]
        return [alert for alert in self.incident.alerts if alert.key in known] or list(
            self.incident.alerts[:1]
        )

    def joined_by(self, at: float) -> list[Alert]:
        """Return the alerts that the incident had at a time; the record has each alert's time of arrival."""
        came = {each.key: each.recorded_at for each in self.alerts if each.firing}
        first = {alert.key for alert in self.opened_by}
        return [a for a in self.incident.alerts if a.key in first or came.get(a.key, 0.0) <= at]

    def arrived_between(self, since: float, until: float) -> list[RecordedAlert]:
        """Return the alerts recorded in that time: about the incident, or about machines."""
        return [each for each in self.meanwhile if since < each.recorded_at <= until]

    def action(self, key: str) -> Action | None:
        """Return the action of that key."""
        return next((each for each in self.actions if each.key == key), None)

    def attempt_at(self, number: int) -> float | None:
        """Return the time at which an attempt after the first was begun (Unix seconds); None: there was none."""
        begun = self.action(f"attempt:{number}")
        return begun.begun_at if begun else None

    def answers_after(self, again: Action) -> list[Action]:
        """Return the answers that people gave before the incident was worked on again: it was taken up for them."""
        after = self.actions[self.actions.index(again) + 1 :]
        return list(takewhile(lambda each: each.kind == "approve", after))

    def epoch(self, number: int) -> Epoch | None:
        """Return the epoch of that number."""
        return next((each for each in self.epochs if each.epoch == number), None)

    def job_then(self, now: Job) -> Job:
        """Return the job as it stood when the incident was opened."""
        seen, epoch = self.inputs.get(taken_up(0)), self.epoch(self.incident.epoch)
        if seen is not None:
            return Job.model_validate(seen["job"])
        stood = {"machines": epoch.machines, "code_version": epoch.code_version} if epoch else {}
        return now.model_copy(update={"epoch": self.incident.epoch, **stood})

    def then(self) -> Then:
        """Return the recorded situation at the moment when a playbook took the incident up."""
        seen = self.inputs.get(taken_up(0))
        if seen is None:
            # An incident that was over before a playbook took it up lacks nothing: no run looked at machines for it.
            if self.incident.first_task_at is not None:
                self.lacks.append("which machines stood by, and how many there were: today's are taken")
            return Then(lives=self._lives())
        return Then(job=seen["job"], lives=self._lives(), standbys=seen["standbys"], fleet=seen["fleet"])

    def standbys_at(self, round_: int) -> Mapping[str, str] | None:
        """Return the standbys at the time when the incident was taken up again."""
        seen = self.inputs.get(taken_up(round_))
        return None if seen is None else seen["standbys"]

    def serving_at(self, moment: str) -> Mapping[str, str | None]:
        """Return the incarnations of the job's machines at a moment that was recorded; None: it did not serve the job.

        Earlier releases recorded none.
        """
        seen = self.inputs.get(moment, {})
        if "serving" not in seen:
            return {}
        return {name: seen["serving"].get(name) for name in seen["job"]["machines"]}

    def _lives(self) -> dict[str, str]:
        """Return machines' incarnations as the first act looked at them, else as alerts name them."""
        lives: dict[str, str] = {}
        for action in reversed(self.actions):
            lives |= action.intent.get("incarnations") or {}
        named = {a.machine: a.incarnation for a in self.incident.alerts if a.machine and a.incarnation}
        first = {name: life for name, life in self.serving_at(taken_up(0)).items() if life}
        return named | lives | first
