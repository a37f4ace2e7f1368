"""Exits with the status of a refused command line: argparse, click and typer end with 2, after a word about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.models.alert import Alert

STATUS = 2
_SAID = re.compile(r"^(?:\S+: error: .+|Error: .+|[│|] (?:No such|Missing|Invalid) .+)$", re.MULTILINE)
_USAGE = re.compile(r"^\s*usage: ", re.IGNORECASE | re.MULTILINE)
_LONGEST = 300


def find(roots: Sequence[Alert], ranks: int) -> list[Alert]:
    """Return the exits of ranks whose command line was refused; none unless that explains all ``roots``.

    Args:
        roots: exits with a cause of their own.
        ranks: without a word about it, at least so many ended so; a single one is no evidence.
    """
    refused = [alert for alert in roots if _refused(alert)]
    if not refused or len(refused) < len(roots):
        return []
    enough = len({alert.rank for alert in refused}) >= max(2, ranks)
    return refused if enough or any(said(alert) for alert in refused) else []


def said(alert: Alert) -> str:
    """Return the message about the command line in the rank's last words; empty: there is none."""
    tail = str(alert.evidence.get("log_tail") or "")
    found = _SAID.findall(tail) if _USAGE.search(tail) else []
    return str(found[-1]).strip("│| ")[:_LONGEST] if found else ""


def _refused(alert: Alert) -> bool:
    evidence = alert.evidence
    return (
        evidence.get("exit_code") == STATUS and not evidence.get("signal") and not evidence.get("error_type")
    )
