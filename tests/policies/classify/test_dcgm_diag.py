"""The JSON in a tool's output, whatever is printed around it."""

from __future__ import annotations

import json

import pytest

from holdfast.policies.classify.dcgm_diag import json_in

OUTPUT = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": []}]}}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n",
        "  ",
        "Successfully ran diagnostic for group.\n",
        "Successfully ran diagnostic for group.\n\n",
        "Warning: Permanently added 'node-3' to the list of known hosts.\r\n\r\n",
        "Error: {x}\n\t",
        '{"level": "warn", "message": "the profiling module is not loaded"}\n',
    ],
)
def test_text_around_it_is_left_out(before: str, indent: int | None) -> None:
    """Empty lines and indentation before it too: without its JSON a diagnosis is a failure of the tool."""
    assert json_in(f"{before}{json.dumps(OUTPUT, indent=indent)}\nDone.\n") == OUTPUT


@pytest.mark.parametrize("text", ["", "no JSON", "{", "[1, 2]", "{x}\n{y}"])
def test_nothing_is_made_of_other_text(text: str) -> None:
    assert json_in(text) is None
