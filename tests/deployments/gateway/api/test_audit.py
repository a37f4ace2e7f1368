"""The audit has the outcome of what people do, also when the ledger fails between the act and its note."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.deployments.gateway.api.audit import Act, audited
from holdfast.errors import RefusedError, UnavailableError
from holdfast.models.history import ActionState

ASKED = Act(act="evict", target="m0", by="ada", via="cli", reason="smoke", source="127.0.0.1")


class Notes:
    """A ledger that takes down how acts end, or is away then."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.ends: list[ActionState] = []

    def note_by_hand(self, *_: str, **__: str) -> SimpleNamespace:
        return SimpleNamespace(id=1)

    def end_by_hand(self, _: int, state: ActionState, __: str) -> None:
        self.ends.append(state)
        if self.away:
            raise UnavailableError("database is locked")


async def do(*, refuses: bool) -> str:
    if refuses:
        raise RefusedError("it is cordoned already")
    return "done"


async def test_an_act_that_was_done_is_never_noted_as_failed() -> None:
    """The ledger is away when its end is written: the entry keeps its intent."""
    site = SimpleNamespace(ledger=Notes(away=True), acts=0)
    with pytest.raises(UnavailableError):
        await audited(site, ASKED, lambda: do(refuses=False), str)  # type: ignore[arg-type]
    assert site.ledger.ends == [ActionState.DONE]
    assert site.acts == 1


@pytest.mark.parametrize(("refuses", "state"), [(False, ActionState.DONE), (True, ActionState.FAILED)])
async def test_how_an_act_ended_is_noted(refuses: bool, state: ActionState) -> None:
    """Either way what the page drew before is old."""
    site = SimpleNamespace(ledger=Notes(), acts=0)
    try:
        await audited(site, ASKED, lambda: do(refuses=refuses), str)  # type: ignore[arg-type]
    except RefusedError:
        assert refuses
    assert site.ledger.ends == [state]
    assert site.acts == 1
