"""Acts of a playbook after its first answer was not enough: machines silent again, a job that falls again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import LimitError
from holdfast.models.alert import Alert, AlertKind, IncidentClass, Verdict
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import domains
from holdfast.tasks import fell_again, pause


@pytest.mark.parametrize(("before", "waits"), [(set(), True), ({"m1"}, True), ({"m1", "m2", "m3"}, False)])
def test_machines_of_one_switch_are_waited_for_once_each(
    monkeypatch: pytest.MonkeyPatch, before: set[str], waits: bool
) -> None:
    """Whatever round the incident is in: a switch may go away for the first time while its playbook waits."""
    monkeypatch.setattr(domains, "known", lambda *_: {})
    monkeypatch.setattr(domains, "shared", lambda *_: {"leaf-1": frozenset({"m1", "m2"})})
    case: Any = SimpleNamespace(ctx=SimpleNamespace(policy=Policy.load()), machines_now=list, round=3)
    if waits:
        with pytest.raises(LimitError, match="share leaf-1"):
            pause._must_not_share(case, ("m1", "m2"), before)
    else:
        pause._must_not_share(case, ("m1", "m2"), before)


async def test_a_machine_that_is_to_go_goes_also_where_a_person_decides_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would serve the next attempt otherwise, and fail it again."""
    gone: list[tuple[str, ...]] = []

    async def nothing(*_: object) -> Verdict:
        return Verdict()

    async def spent(*_: object) -> None:
        raise LimitError("all rungs of the ladder are used up")

    async def evict(_case: object, machines: tuple[str, ...], *_: object) -> None:
        gone.append(tuple(machines))

    for name, act in (("diagnose", nothing), ("escalate", spent), ("evict", evict)):
        monkeypatch.setattr(fell_again, name, act)
    case: Any = SimpleNamespace(
        ctx=SimpleNamespace(policy=Policy.load()),
        incident=SimpleNamespace(reasons=("m1: its agent came and went",), alerts=()),
        broken_epoch=2,
        incident_class=IncidentClass.MACHINE_FAULT,
        model_copy=lambda update: case,
    )
    with pytest.raises(LimitError, match="used up"):
        await fell_again.look_further(case, ("m1",))
    assert gone == [("m1",)]


@pytest.mark.parametrize(("cause", "did"), [("remote_storage", "wait"), ("checkpoint", "diagnose")])
async def test_where_the_store_gives_no_state_no_machine_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, cause: str, did: str
) -> None:
    """It is waited for, and the ladder is that of an outside service: no code goes back, and nothing is replayed."""
    done: list[str] = []
    evidence = {"error_type": "UnavailableError", "cause": cause}
    alert = Alert(
        kind=AlertKind.RANK_EXIT, job="gpt", machine="m0", rank=0, epoch=2, at=1.0, evidence=evidence
    )

    async def look(*_: object) -> Verdict:
        done.append("diagnose")
        return Verdict()

    async def wait(*_: object) -> str:
        done.append("wait")
        return ""

    async def escalate(fallen: Any, _: Verdict) -> Any:
        done.append(fallen.incident_class.value)
        return SimpleNamespace(verdict=Verdict(), did="")

    async def evict(*_: object) -> None: ...

    acts = (("diagnose", look), ("await_healthy", wait), ("escalate", escalate), ("evict", evict))
    for name, act in acts:
        monkeypatch.setattr(fell_again, name, act)
    case: Any = SimpleNamespace(
        ctx=SimpleNamespace(policy=Policy.load()), incident=SimpleNamespace(alerts=(alert,)), broken_epoch=2
    )
    case.model_copy = lambda update: SimpleNamespace(**{**vars(case), **update})
    await fell_again.look_further(case)
    assert done == [did, "external_service" if did == "wait" else "job_crash"]
