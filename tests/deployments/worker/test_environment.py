"""The environment of clients of the site's Prefect API."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

from holdfast import secret
from holdfast.deployments.worker.environment import adopt
from holdfast.settings import Settings


def test_a_process_is_made_a_client_once(tmp_path: Path) -> None:
    """A user's own Prefect is left; later nothing is changed: another thread may copy the environment meanwhile."""
    settings = Settings(home=tmp_path)
    secret.create_prefect_auth(settings)
    with patch.dict(os.environ, {"PREFECT_API_KEY": "theirs", "PREFECT_HOME": "/theirs"}):
        adopt(settings)
        assert "PREFECT_API_KEY" not in os.environ
        assert os.environ["PREFECT_HOME"] == str(tmp_path / "prefect")
        changed: list[str] = []
        with (
            patch.object(os, "putenv", lambda name, _: changed.append(name)),
            patch.object(os, "unsetenv", changed.append),
        ):
            adopt(settings)
        assert not changed
