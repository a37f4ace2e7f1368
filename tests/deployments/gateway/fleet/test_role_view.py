"""The roles of a job as people see them."""

from __future__ import annotations

from holdfast.deployments.gateway.fleet import role_view
from holdfast.models.roles import ReplicaPhase, ReplicaPlace, ReplicaState


def test_restarts_where_a_replica_failed_are_counted_once() -> None:
    """Its agent reports them until the plan without it is there, and no longer than that."""
    place = ReplicaPlace(role="r", index=0, machine="m1", generation=2, restarts=3)
    report = ReplicaState(job="j", role="r", index=0, generation=2, phase=ReplicaPhase.FAILED, restarts=1)
    failed = place.model_copy(update={"tried": ("m0", "m1"), "asked": "exit status 1"})
    seen = [
        role_view._place(place, report, lingers=False),
        role_view._place(failed, report, lingers=False),
        role_view._place(failed, None, lingers=False),
    ]
    assert [each["restarts"] for each in seen] == [4, 3, 3]
