"""Roles as ``status`` prints them, and what a submission refuses before anything is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import roles, sources
from holdfast.errors import SettingsError
from holdfast.models.job import JobSpec

ROW = {"waits_for": [], "unplaced": 0, "ready": False, "running": 0}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"waits_for": ["cache"]}, "waits for cache"),
        ({"unplaced": 2}, "no room for 2"),
        ({"ready": True}, "ready"),
        ({"running": 1}, "running"),
        ({}, "starting"),
    ],
)
def test_a_role_has_one_state(changes: dict[str, object], told: str) -> None:
    assert roles.state({**ROW, **changes}) == told


def test_roles_are_printed_with_what_needs_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing at all for jobs without roles."""
    roles.show([{"name": "old"}])
    assert capsys.readouterr().out == ""
    place = {"phase": "failed", "index": 3, "why": "exit status 3 on m0"}
    role = {**ROW, "name": "rollout", "kind": "dynamic", "replicas": 4, "restarts": 7, "places": [place]}
    roles.show([{"name": "rl", "roles": [role]}])
    printed = capsys.readouterr().out
    assert "0 of 4" in printed
    assert "rl: rollout 3 needs a person: exit status 3 on m0" in printed


def test_an_unknown_script_of_a_role_is_refused(tmp_path: Path) -> None:
    """By its field."""
    (tmp_path / "train.py").write_text("")
    spec = JobSpec.model_validate(
        {
            "name": "rl",
            "script": "train.py",
            "machines": 1,
            "ranks_per_machine": 1,
            "roles": {"rollout": {"script": "rollout.py"}, "trainer": {}},
        }
    )
    with pytest.raises(SettingsError, match=r"roles.rollout.script = 'rollout.py': no such file"):
        sources.check_scripts(tmp_path, spec)
