"""More heartbeats than one gateway answers in time are named, with what to set."""

from __future__ import annotations

import pytest

from holdfast.testing.gateway_kit import Kit


async def test_too_many_heartbeats_are_named_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """The default interval is for tens of machines; with a thousand the gateway would answer late, and seem gone."""
    caplog.set_level("WARNING", "holdfast.gateway")

    def warnings() -> list[str]:
        return [each.message for each in caplog.records if "HOLDFAST_HEARTBEAT_S" in each.message]

    await kit.running_job(machines=2, standbys=1)
    await kit.gateway._refresh()
    assert warnings() == []
    kit.gateway.site.settings = kit.settings.model_copy(update={"heartbeat_s": 0.002})
    await kit.gateway._refresh()
    await kit.gateway._refresh()
    (line,) = warnings()
    assert line.startswith("3 machines that send a heartbeat every 0.002 s are 1500 a second")
    assert "HOLDFAST_HEARTBEAT_S to 0.1 or more" in line
