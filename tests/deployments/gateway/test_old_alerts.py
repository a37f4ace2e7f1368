"""A ledger lives for years: alerts that led to no incident are forgotten after a while."""

from __future__ import annotations

from holdfast.deployments.gateway.gateway import FORGET_EVERY_S
from holdfast.models.alert import Alert, AlertKind
from holdfast.testing.gateway_kit import Kit

CHECK = {"check": "disk"}


def recorded(kit: Kit) -> list[tuple[str | None, str]]:
    return [(each.machine, each.outcome) for each in reversed(kit.ledger.alerts())]


async def test_what_led_to_no_incident_is_forgotten_after_a_while(kit: Kit) -> None:
    """Not at once, and not what an incident was opened for: that is read years later."""

    def record(machine: str, incident: str | None) -> None:
        alert = Alert(kind=AlertKind.HOST_FAULT, machine=machine, at=kit.clock.now(), evidence=CHECK)
        kit.ledger.record_alert(alert, incident, "recorded")

    record("m0", None)
    record("m1", "gpt-1")
    kit.clock.advance(kit.gateway.site.settings.alerts_days * 86_400.0 + 1.0)
    record("m2", None)
    kit.gateway._forgot_at = kit.clock.monotonic()
    await kit.gateway.touch()
    assert recorded(kit) == [("m0", "recorded"), ("m1", "recorded"), ("m2", "recorded")]
    kit.clock.advance(FORGET_EVERY_S)
    await kit.gateway.touch()
    assert recorded(kit) == [("m1", "recorded"), ("m2", "recorded")]


async def test_only_so_many_are_forgotten_at_once(kit: Kit) -> None:
    """Others wait for the transaction; the oldest go first."""
    for number in range(5):
        alert = Alert(kind=AlertKind.HOST_FAULT, machine=f"m{number}", at=1.0, evidence=CHECK)
        kit.ledger.record_alert(alert, None, "recorded")
    kit.clock.advance(1.0)
    assert kit.ledger.forget_alerts(kit.clock.now(), most=3) == 3
    assert [machine for machine, _ in recorded(kit)] == ["m3", "m4"]
    assert kit.ledger.forget_alerts(kit.clock.now(), most=3) == 2
    assert kit.ledger.forget_alerts(kit.clock.now(), most=3) == 0
