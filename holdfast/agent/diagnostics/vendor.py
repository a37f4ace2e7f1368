"""The vendor's own diagnostics: ``dcgmi diag`` at its quickest level, where it is installed.

Levels 2 and up take minutes to hours: they belong to a machine's own later inspection, not to a recovery. EUD
finds about 70 % of silent corruption (BR), so a pass proves nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

from holdfast.agent.inspection.dcgm import json_in
from holdfast.commands import run
from holdfast.models.alert import Finding
from holdfast.policies.classify.dcgm import OF_HARDWARE, of_hardware

LEVEL = 1
_KEPT = 16 << 20
"""Bytes: the answer is one document, of all GPUs."""


async def check(machine: str, timeout_s: float, program: str = "dcgmi") -> list[Finding]:
    """Return one finding per test that failed, or one that reports that all passed; none where it is not installed."""
    found = shutil.which(program)
    if found is None:
        return []
    command = (found, "diag", "-r", str(LEVEL), "-j")
    ended = await run(command, timeout_s, kept=_KEPT)
    if ended.status is None:
        return [_unsure(machine, f"dcgmi diag took longer than {timeout_s:g} s")]
    told = json_in(ended.out)
    if told is None:
        said = (ended.err or ended.out).strip()[:300]
        return [_unsure(machine, f"dcgmi diag ended with status {ended.status}: {said}")]
    return judge(machine, told)


def judge(machine: str, told: Any) -> list[Finding]:
    """Return findings from the JSON of ``dcgmi diag -j`` (DCGM 3 and 4 nest it differently; both list results per GPU).

    A failed test is sure where its severity requires that the GPU be isolated or reset, or where it has no severity and
    tests hardware. The setup of a machine (persistence mode, the environment) accuses no machine.
    """
    tests = list(_tests(told))
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
        return failed or [_unsure(machine, "dcgmi diag told of no test")]
    return [Finding(check="vendor", machine=machine, ok=True, detail=f"{len(tests)} results of dcgmi diag")]


def _tests(node: Any, name: str = "") -> Iterator[tuple[str, str, str, str, int | None]]:
    """Yield (test, GPU, status in small letters, message, severity) of every result, wherever it is."""
    if isinstance(node, list):
        for item in node:
            yield from _tests(item, name)
    if not isinstance(node, dict):
        return
    name = str(node.get("name") or name)
    status = node.get("status")
    if isinstance(status, str):
        gpu = node.get("gpu_id", node.get("gpu_ids", node.get("entity_id", "?")))
        said = node.get("warnings") or node.get("info") or ""
        words = said if isinstance(said, str) else json.dumps(said)
        yield name, str(gpu), status.lower(), words, _severity(said)
    for key, value in node.items():
        # DCGM 4 summarises each test beside its results.
        if key != "test_summary" or not node.get("results"):
            yield from _tests(value, name)


def _severity(said: Any) -> int | None:
    """Return the gravest severity that the warnings name; None when none does."""
    listed = said if isinstance(said, list) else []
    named = [one["error_severity"] for one in listed if isinstance(one, dict) and "error_severity" in one]
    known = [one for one in named if isinstance(one, int)]
    return next((one for one in known if one in OF_HARDWARE), known[0] if known else None)


def _unsure(machine: str, why: str) -> Finding:
    return Finding(check="vendor", machine=machine, ok=False, detail=why)
