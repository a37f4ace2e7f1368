"""The playbook of a policy's class, run over the copy of the ledger: first as it began, then round after round."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast import plugins
from holdfast.clock import FakeClock
from holdfast.errors import StaleError, UnknownError
from holdfast.hindsight import reopening
from holdfast.hindsight.incident_record import Record
from holdfast.hindsight.reopening import ReplayedOpening
from holdfast.hindsight.stand_ins import Hindsight, PastLedger
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Action
from holdfast.models.machine import MachineState
from holdfast.models.wait import Wait
from holdfast.plugins import EntryPoints
from holdfast.policies.config.policy import Policy
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.inputs import taken_up
from holdfast.storage.ledger.waits import AGAIN
from holdfast.tasks import context
from holdfast.tasks.plain import without_prefect
from holdfast.tasks.playbook import Playbook
from holdfast.tasks.recovery_context import Request

FindPlaybook = Callable[[IncidentClass], Playbook]


@dataclass(frozen=True)
class Replayed:
    """The decisions of a policy."""

    opening: ReplayedOpening
    incident: Incident | None
    """The incident as it ended; None: none was opened."""
    actions: tuple[Action, ...]
    wait: Wait | None
    assumed: dict[str, str]
    """Keys of actions whose outcome is not from the record, and why."""
    error: str = ""
    """Error of the last run."""


def playbook_of(incident_class: IncidentClass) -> Playbook:
    """Return the built-in playbook, or that of another package.

    Raises:
        UnknownError: its package is not installed here.
    """
    name = incident_class.value
    if find_spec(f"holdfast.flows.{name}"):
        found: Playbook = getattr(import_module(f"holdfast.flows.{name}"), name)
        return found
    others, _ = plugins.load(EntryPoints.PLAYBOOKS)
    if name not in others:
        raise UnknownError(f"no playbook of class {name!r} is installed here")
    other: Playbook = others[name]
    return other


async def replay(
    record: Record, ledger: Ledger, policy: Policy, settings: Settings, find: FindPlaybook = playbook_of
) -> Replayed:
    """Decide about the incident again, by ``policy``. Nothing outside a temporary folder is changed."""
    then = record.then()
    opened = reopening.decide(record, record.job_then(ledger.job(record.incident.job)), policy)
    if opened.found is None:
        return Replayed(opened, None, (), None, {})
    with TemporaryDirectory(prefix="holdfast-hindsight-") as folder:
        clock = FakeClock(record.incident.opened_at)
        copy = PastLedger(f"sqlite:///{Path(folder) / 'ledger.db'}", clock)
        copy.create()
        try:
            ledger.rewind(record.incident.id, opened.found, then, copy)
            copy.join(record.incident.id, record.opened_by)
            services = Hindsight(
                settings.model_copy(update={"home": Path(folder)}), clock, copy, policy, record
            )
            with without_prefect(), _used(services):
                error = await _rounds(record, services, find(opened.found.incident_class))
            incident_id = record.incident.id
            return Replayed(
                opened,
                copy.incident(incident_id),
                tuple(copy.actions(incident_id)),
                copy.last_wait(incident_id),
                services.assumed,
                error,
            )
        finally:
            copy.close()


@contextlib.contextmanager
def _used(services: Hindsight) -> Iterator[None]:
    context.use(services)
    try:
        yield
    finally:
        context.use(None)


async def _rounds(record: Record, services: Hindsight, playbook: Playbook) -> str:
    """Run the playbook until it has ended, and again for every time that the record shows it taken up again."""
    was = record.incident
    if was.first_task_at is None and was.state is not IncidentState.OPEN:
        # The gateway closed it before its playbook began: another incident of the job came first.
        services.ledger.set_incident(was.id, state=was.state, summary=was.summary)
        return ""
    again = [action for action in record.actions if action.kind == AGAIN]
    services.until(record.incident.first_task_at)
    error = await _attempts(record, services, playbook)
    for round_, action in enumerate(again, start=1):
        if services.ledger.incident(record.incident.id).state is not IncidentState.NEEDS_HUMAN:
            break
        services.pass_time(action.begun_at)
        _stand_by(record, services, round_)
        try:
            taken = services.ledger.take_up(record.incident.id, str(action.result.get("why", "")))
        except StaleError:
            break
        for given in record.answers_after(action):
            services.ledger.begin(taken.id, taken.attempt, given.key, given.kind, given.intent)
        services.until(action.begun_at)
        error = await _attempts(record, services, playbook)
    return error


def _stand_by(record: Record, services: Hindsight, round_: int) -> None:
    ledger = services.ledger
    there = record.standbys_at(round_)
    known = {each.name for each in ledger.machines()}
    for name, incarnation in (there or {}).items():
        if name not in known:
            ledger.add_provisioning([name])
        ledger.set_machine(name, state=MachineState.STANDBY, incarnation=incarnation)
    services.be_as_at(taken_up(round_))


async def _attempts(record: Record, services: Hindsight, playbook: Playbook) -> str:
    """Run the playbook; retry while it fails, as often as the policy allows the gateway. Return the last error."""
    ledger, incident_id = services.ledger, record.incident.id
    while True:
        incident = ledger.incident(incident_id)
        try:
            await playbook.fn(Request(id=incident_id, attempt=incident.attempt))
        except Exception as error:  # the run failed: the next attempt, as the gateway's reconciler does
            if ledger.incident(incident_id).state is not IncidentState.OPEN:
                return ""
            if incident.attempt >= services.policy.gateway.max_attempts:
                return plugins.in_one_line(error)
            ledger.next_attempt(incident_id, incident.attempt)
            services.until(record.attempt_at(incident.attempt + 1))
            continue
        return ""
