"""Detection of flapping machines, from the ledger's record of them and of the jobs that they served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from holdfast.clock import Clock
from holdfast.models.alert import NETWORK_KINDS, AlertKind, IncidentClass
from holdfast.models.machine import MachineState
from holdfast.policies.classify.roots import separate
from holdfast.policies.config.ladders import FlapPolicy
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import flapping, rank_deaths, topology
from holdfast.policies.pool.rank_deaths import Death
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.alerts import RecordedAlert

_LOOK_BACK = 50
"""Incidents of a job, newest first."""
_KINDS = (*NETWORK_KINDS, AlertKind.HOST_FAULT, AlertKind.RANK_EXIT)


def find(ledger: Ledger, names: Iterable[str], now: float, policy: Policy) -> dict[str, str]:
    """Return those of the machines that flap, or on which errors of the GPU come again and again; and why."""
    ladder = policy.ladder
    by_machine, deaths = _history(
        ledger, names, now - max(ladder.flaps.window_s, ladder.gpu_errors.window_s), policy
    )
    reasons = {
        name: rank_deaths.why_of_gpu(name, deaths[name], now, ladder.gpu_errors) for name in by_machine
    }
    return {name: why for name, why in reasons.items() if why} | _come_and_go(
        ledger, by_machine, deaths, now, policy
    )


def _history(
    ledger: Ledger, names: Iterable[str], since: float, policy: Policy
) -> tuple[dict[str, list[RecordedAlert]], dict[str, list[Death]]]:
    """Return by machine what was reported of it since then, and the deaths of ranks in the jobs that it served."""
    by_machine = ledger.alerts_of_kinds(names, _KINDS, since)
    return by_machine, _deaths(ledger, by_machine, since, policy)


def _come_and_go(
    ledger: Ledger,
    by_machine: Mapping[str, Sequence[RecordedAlert]],
    deaths: Mapping[str, Sequence[Death]],
    now: float,
    policy: Policy,
) -> dict[str, str]:
    rules = policy.ladder.flaps
    reasons = {
        name: flapping.why(_flaps(alerts), now, rules, _restarts(alerts))
        for name, alerts in by_machine.items()
    }
    for name in by_machine:
        if reasons[name]:
            reasons[name] = _of_its_own(ledger, name, by_machine[name], now, policy)
        if not reasons[name] and rank_deaths.why(name, deaths[name], now, rules):
            others = _of_other_jobs(ledger, {each.job for each in deaths[name]}, now - rules.window_s, policy)
            reasons[name] = rank_deaths.why(name, deaths[name], now, rules, others)
    return {name: why for name, why in reasons.items() if why}


def _of_its_own(ledger: Ledger, name: str, mine: Sequence[RecordedAlert], now: float, policy: Policy) -> str:
    """Return why it flaps by what went away without the machines that share a switch, a rack or its job."""
    rules = policy.ladder.flaps
    domains = _shared_with(ledger, name, policy)
    others = {other for members in domains for other in members if other != name}
    by_machine = ledger.alerts_of_kinds(others, _KINDS, now - rules.window_s)
    elsewhere = {other: [*_flaps(alerts), *_restarts(alerts)] for other, alerts in by_machine.items()}

    def own(times: Iterable[float]) -> list[float]:
        return flapping.own(times, elsewhere, domains, policy.detect.network)

    return flapping.why(own(_flaps(mine)), now, rules, own(_restarts(mine)))


def _shared_with(ledger: Ledger, name: str, policy: Policy) -> list[frozenset[str]]:
    """Return the machines of each domain of a machine: those of its switch and rack, and those of its job."""
    machines = ledger.machines()
    places = dict(zip([each.name for each in machines], topology.locations(machines, policy), strict=True))
    found = [
        frozenset(other for other, place in places.items() if place.get(level) == domain)
        for level, domain in places.get(name, {}).items()
    ]
    job = next((each.job for each in machines if each.name == name), None)
    of_job = frozenset(each.name for each in machines if job and each.job == job)
    return [members for members in (*found, of_job) if len(members) > 1]


def _deaths(
    ledger: Ledger, by_machine: Mapping[str, Sequence[RecordedAlert]], since: float, policy: Policy
) -> dict[str, list[Death]]:
    """Return by machine the deaths in all jobs that had some there, on whatever machine."""
    jobs = {name: sorted({str(each.job) for each in by_machine[name] if _dies(each)}) for name in by_machine}
    known = {
        job: deaths_of(ledger, job, since, policy) for job in {*(job for of in jobs.values() for job in of)}
    }
    return {name: [each for job in mine for each in known[job]] for name, mine in jobs.items()}


def _of_other_jobs(ledger: Ledger, but: Set[str], since: float, policy: Policy) -> list[Death]:
    """Return the deaths since then in all jobs ``but`` these."""
    by_machine = ledger.alerts_of_kinds(
        [each.name for each in ledger.machines()], [AlertKind.RANK_EXIT], since
    )
    jobs = {str(each.job) for alerts in by_machine.values() for each in alerts if each.job}
    return [each for job in sorted(jobs - but) for each in deaths_of(ledger, job, since, policy)]


def deaths_of(ledger: Ledger, job: str, since: float, policy: Policy) -> list[Death]:
    """Return the ranks of the job that died by themselves since then, where nothing else explained it."""
    epochs = {each.epoch: each for each in ledger.epochs(job)}
    found: list[Death] = []
    for incident in ledger.incidents(job, limit=_LOOK_BACK):
        if incident.opened_at <= since or incident.incident_class is not IncidentClass.JOB_CRASH:
            continue
        mine = [alert for alert in incident.alerts if alert.epoch in (None, incident.epoch)]
        step = epochs[incident.epoch].reached if incident.epoch in epochs else None
        ended = separate(mine)
        died = (*ended.roots, *ended.waited)
        deaths = (rank_deaths.death(alert, incident.opened_at, step, policy.classify) for alert in died)
        found += [each for each in deaths if each is not None]
    return found


def of_the_pool(ledger: Ledger, clock: Clock, policy: Policy) -> list[str]:
    """Return the standbys that no job gets now: they flap, or flapped and their checks have not passed for a while."""
    return list(why_kept_out(ledger, clock.now(), policy))


def why_kept_out(ledger: Ledger, now: float, policy: Policy) -> dict[str, str]:
    """Return the standbys of :func:`of_the_pool`, with the reasons."""
    standbys = [machine.name for machine in ledger.machines(state=MachineState.STANDBY)]
    rules = policy.ladder.flaps
    by_machine, deaths = _history(ledger, standbys, now - rules.window_s, policy)
    return _not_cleared(ledger, standbys, now, rules) | _come_and_go(ledger, by_machine, deaths, now, policy)


def _not_cleared(ledger: Ledger, names: Sequence[str], now: float, rules: FlapPolicy) -> dict[str, str]:
    by_machine = ledger.alerts_of_kinds(names, _KINDS, now - flapping.REMEMBERED_S)
    reasons = {
        name: flapping.kept_out(_flaps(alerts), *_checks(alerts), rules, _restarts(alerts))
        for name, alerts in by_machine.items()
    }
    return {name: why for name, why in reasons.items() if why}


def _flaps(alerts: Iterable[RecordedAlert]) -> list[float]:
    return [each.recorded_at for each in alerts if flapping.counts(each) and not flapping.restarted(each)]


def _restarts(alerts: Iterable[RecordedAlert]) -> list[float]:
    return [each.recorded_at for each in alerts if flapping.counts(each) and flapping.restarted(each)]


def _dies(alert: RecordedAlert) -> bool:
    return alert.kind is AlertKind.RANK_EXIT and alert.job is not None and not alert.evidence.get("cascade")


def _checks(alerts: Iterable[RecordedAlert]) -> tuple[list[float], list[float]]:
    """Return when the checks of a standby passed, and when they did not."""
    results = [each for each in alerts if flapping.of_checks(each)]
    return (
        [each.recorded_at for each in results if not each.firing],
        [each.recorded_at for each in results if each.firing],
    )
