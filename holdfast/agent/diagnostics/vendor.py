"""The vendor's own diagnostics: ``dcgmi diag`` at its quickest level, where it is installed.

Levels 2 and up take minutes to hours: they belong to a machine's own later inspection, not to a recovery. EUD
finds about 70 % of silent corruption (ByteRobust), so a pass proves nothing.
"""

from __future__ import annotations

import shutil

from holdfast.commands import run
from holdfast.models.alert import Finding
from holdfast.policies.classify.dcgm_diag import json_in, judge

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
    report = json_in(ended.out)
    if report is None:
        output = (ended.err or ended.out).strip()[:300]
        return [_unsure(machine, f"dcgmi diag ended with status {ended.status}: {output}")]
    return judge(machine, report)


def _unsure(machine: str, why: str) -> Finding:
    return Finding(check="vendor", machine=machine, ok=False, detail=why)
