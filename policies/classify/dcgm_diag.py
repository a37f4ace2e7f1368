"""Judgement on the JSON of ``dcgmi diag``: which failed tests prove a broken GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from holdfast.models.alert import Finding
from holdfast.policies.classify.dcgm import OF_HARDWARE, of_hardware

_BRACE = re.compile(r"^[ \t\r]*\{", re.MULTILINE)


def json_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a tool's output; the text before and after it is for people.

    Of several the longest: a line of a log may be one as well.
    """
    decoder = json.JSONDecoder()
    longest: dict[str, Any] | None = None
    length = end = 0
    for start in (found.end() - 1 for found in _BRACE.finditer(text)):
        if start < end:
            continue
        try:
            found, end = decoder.raw_decode(text, start)
        except ValueError:
            continue
        if end - start > length:
            longest, length = found, end - start
    return longest


def judge(machine: str, output: Any) -> list[Finding]:
    """Return findings from the JSON of ``dcgmi diag -j`` (DCGM 3 and 4 nest it differently; both list results per GPU).

    A failed test is sure where its severity requires that the GPU be isolated or reset, or where it has no severity and
    tests hardware. The setup of a machine (persistence mode, the environment) accuses no machine.
    """
    tests = tests_in(output)
    failed = [
        Finding(
            check="vendor",
            machine=machine,
            ok=False,
            sure=of_hardware(name, why, severity),
            detail=f"{name} on GPU {gpu}: {why or 'failed'}"[:300],
        )
        for name, gpu, status, why, severity in tests
        if status == "fail"
    ]
    if failed or not tests:
        return failed or [_unsure(machine, "dcgmi diag reported no test")]
    return [Finding(check="vendor", machine=machine, ok=True, detail=f"{len(tests)} results of dcgmi diag")]


def tests_in(output: Any) -> list[tuple[str, str, str, str, int | None]]:
    """Return every test's result: see :func:`_results`."""
    return list(_results(output))


def _results(node: Any, name: str = "") -> Iterator[tuple[str, str, str, str, int | None]]:
    """Yield (test, GPU, status in small letters, message, severity) of every result, wherever it is."""
    if isinstance(node, list):
        for item in node:
            yield from _results(item, name)
    if not isinstance(node, dict):
        return
    name = str(node.get("name") or name)
    status = node.get("status", node.get("result"))
    if isinstance(status, str):
        gpu = node.get("gpu_id", node.get("gpu_ids", node.get("entity_id", "?")))
        warnings = node.get("warnings") or node.get("info") or ""
        words = warnings if isinstance(warnings, str) else json.dumps(warnings)
        yield name, str(gpu), status.lower(), words, _severity(warnings)
    for key, value in node.items():
        # DCGM 4 summarises each test beside its results.
        if key != "test_summary" or not node.get("results"):
            yield from _results(value, name)


def _severity(warnings: Any) -> int | None:
    """Return the gravest severity that the warnings name; None when none does."""
    listed = warnings if isinstance(warnings, list) else []
    named = [one["error_severity"] for one in listed if isinstance(one, dict) and "error_severity" in one]
    known = [one for one in named if isinstance(one, int)]
    return next((one for one in known if one in OF_HARDWARE), known[0] if known else None)


def _unsure(machine: str, why: str) -> Finding:
    return Finding(check="vendor", machine=machine, ok=False, detail=why)
