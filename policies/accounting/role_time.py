"""Time that a role's replicas were wanted, and that they ran: what faults of its own cost a role."""

from __future__ import annotations

from holdfast.models.roles import RoleTime

LONGEST_LOOK_S = 5.0
"""Between two looks; what lies further apart no gateway saw, and it counts on neither side."""


def after(time: RoleTime, seconds: float, wanted: int, running: int) -> RoleTime:
    """Return ``time`` with ``seconds`` more, in which so many replicas were wanted and ran.

    Replicas beyond those that are wanted (a role that is being scaled down) count no more than those. A step of the
    clock backwards counts nothing.
    """
    if not 0 < seconds <= LONGEST_LOOK_S:
        return time
    return RoleTime(
        wanted_s=time.wanted_s + seconds * wanted,
        running_s=time.running_s + seconds * min(wanted, running),
    )
