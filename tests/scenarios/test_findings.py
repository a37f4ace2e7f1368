"""The table of past wrong decisions names scenarios and tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast.testing.scenario import load
from tests.scenarios.findings import SCENARIOS, TESTS

ROOT = Path(__file__).parents[2]
KNOWN = {one.name for one in load(Path(__file__).parent)}


@pytest.mark.parametrize("finding", SCENARIOS)
def test_each_finding_has_its_scenarios(finding: str) -> None:
    """A scenario that is renamed or removed is missed here."""
    assert SCENARIOS[finding]
    assert {*SCENARIOS[finding]} <= KNOWN


@pytest.mark.parametrize("finding", TESTS)
def test_each_other_finding_has_its_tests(finding: str) -> None:
    """Likewise for tests with real processes."""
    for named in TESTS[finding]:
        path, _, name = named.partition("::")
        defined = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in defined, named
