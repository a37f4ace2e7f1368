"""Machines whose replicas differ: the machine, or the program."""

from __future__ import annotations

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.diagnose.odd_replica import odd

PRESENT = {"m1": "i1", "m2": "i1", "m4": "i1"}


def differs(rank: int, machine: str, step: int) -> Alert:
    known = {"step": step, "ranks": [rank]}
    return Alert(
        kind=AlertKind.REPLICA_DIFFERS, job="gpt", machine=machine, incarnation="i1", at=1.0, evidence=known
    )


def test_the_odd_ones_machine_is_accused() -> None:
    """Also where another was odd at another step before: machines fail on their own."""
    now = differs(5, "m2", 16)
    assert odd([now], [], PRESENT).machines == ("m2",)
    assert odd([now], [differs(2, "m1", 12)], PRESENT).machines == ("m2",)
    assert odd([now], [differs(5, "m2", 16)], PRESENT).machines == ("m2",)


def test_one_rank_on_two_machines_and_two_machines_at_one_step_are_the_programs() -> None:
    """Bits that flip choose neither."""
    rank = odd([differs(2, "m4", 36)], [differs(2, "m1", 16)], PRESENT)
    step = odd([differs(5, "m2", 16)], [differs(2, "m1", 16)], PRESENT)
    assert rank.machines == step.machines == ()
    assert step.reasons == (
        "m2: not accused, for a replica on m1 was odd at step 16 as well: it comes from the program",
    )
