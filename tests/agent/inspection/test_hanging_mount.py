"""The look at a real mount whose server never answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.inspection.mount_probe import MountProbe
from holdfast.agent.inspection.mounts import Mounts
from holdfast.models.alert import AlertKind
from tests.agent.inspection.kit import LIMITS
from tests.e2e.waiting import wait_for
from tests.silent_mount import silent


@pytest.mark.e2e
def test_a_mount_that_hangs_is_reported_and_holds_nothing_up(tmp_path: Path) -> None:
    """In bounded time, as long as it hangs; when its server is gone it is as a server that is away."""
    folder = tmp_path / "shared"
    with silent(folder) as server:
        limits = LIMITS.storage.model_copy(update={"paths": (str(folder),), "mount_timeout_s": 0.3})

        def of(path: Path, timeout_s: float) -> MountProbe:
            # The other one is there, however late it is.
            return MountProbe(path, timeout_s if path == folder else 60.0)

        mounts = Mounts(tmp_path, limits, of)
        try:
            for _ in range(2):
                (sign,) = [sign for sign in mounts.look() if not sign.ok]
                assert (sign.kind, sign.device) == (AlertKind.MOUNT_UNRESPONSIVE, str(folder))
                assert "has not answered" in sign.detail
            server.close()
            seen: list[str] = []

            def is_away() -> bool:
                seen.extend(sign.detail for sign in mounts.look() if not sign.ok)
                return any("not connected" in detail for detail in seen)

            wait_for(lambda: f"it is reported as away: {seen}", is_away)
        finally:
            for probe in mounts._probes.values():
                probe.close()  # type: ignore[attr-defined]
