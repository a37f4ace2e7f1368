"""DCGM through a ``dcgmi`` that prints what the real tool prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.inspection.dcgm import DcgmHealth
from holdfast.models.alert import AlertKind

# As dcgmi/Health.cpp and DcgmiOutput.cpp print it (jsoncpp's toStyledString).
SICK: dict[str, Any] = {
    "body": {
        "GPU": {
            "children": {
                "1": {
                    "children": {
                        "Errors": {
                            "children": {
                                "Memory system": {
                                    "overflow": ["A DBE occurred on GPU 1.", "Reset the GPU."],
                                    "value": "Failure",
                                },
                                "SM system": {"overflow": ["warm"], "value": "Warning"},
                            }
                        }
                    },
                    "value": "Failure",
                }
            }
        },
        "Overall Health": {"value": "Failure"},
    },
    "header": ["Health Monitor Report"],
}
WELL = {"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``dcgmi`` in PATH that prints the file ``answer`` and notes how it was called."""
    tool = tmp_path / "bin" / "dcgmi"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f"[ -e {tmp_path}/hang ] && exec sleep 60\ncat {tmp_path}/answer\n"
        f"exit $(cat {tmp_path}/status 2>/dev/null || echo 0)\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def answer(folder: Path, found: Any, status: int = 0) -> None:
    text = found if isinstance(found, str) else json.dumps(found, indent=3)
    (folder / "answer").write_text(text)
    (folder / "status").write_text(str(status))


def test_a_host_without_dcgm_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tool in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert DcgmHealth(1.0).look() == []


def test_health_is_read_without_a_test(dcgmi: Path) -> None:
    """Only the watches are asked."""
    answer(dcgmi, WELL)
    [sign] = DcgmHealth(60.0).look()
    assert sign.ok
    assert (dcgmi / "calls").read_text() == "health -c -j\n"


def test_what_the_watches_saw_is_a_sign_each(dcgmi: Path) -> None:
    """Per GPU and system, with its level and the tool's words."""
    answer(dcgmi, SICK)
    failed, warned = DcgmHealth(60.0).look()
    assert (failed.kind, failed.device) == (AlertKind.DCGM_HEALTH, "GPU 1 Memory system")
    assert failed.evidence == {"level": "fail", "system": "Memory system"}
    assert "A DBE occurred on GPU 1. Reset the GPU." in failed.detail
    assert warned.evidence["level"] == "warn"


@pytest.mark.parametrize(
    "text",
    [
        "Error: Health watches not enabled. Please enable watches. \n",
        "Error: unable to establish a connection to the specified host: localhost\n",
        "",
        '{"body": ["unexpected"]}',
        '{"body": {"GPU": {"children": {"0": "odd"}}}}',
        "{broken",
    ],
)
def test_a_dcgm_that_is_not_set_up_accuses_no_machine(dcgmi: Path, text: str) -> None:
    """No service, no watches, no sense."""
    answer(dcgmi, text, status=1)
    assert all(sign.ok for sign in DcgmHealth(60.0).look())


def test_a_tool_that_hangs_is_given_up(dcgmi: Path) -> None:
    """The agent goes on."""
    answer(dcgmi, WELL)
    (dcgmi / "hang").touch()
    assert DcgmHealth(0.2).look() == []
