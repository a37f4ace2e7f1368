"""Exits of scripts that must change: a command line that is refused, and what the Session refuses.

Argparse, click and typer end with status 2, after a word about it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.models.alert import Alert

STATUS = 2
_MESSAGE = re.compile(r"^(?:\S+: error: .+|Error: .+|[│|] (?:No such|Missing|Invalid) .+)$", re.MULTILINE)
_USAGE = re.compile(r"^\s*usage: ", re.IGNORECASE | re.MULTILINE)
_LONGEST = 300
BY_SESSION = "ScriptRefusedError"
"""The exception by which a Session refuses the script's calls, or the state that it is given."""
ELSEWHERE = "cannot be saved on another rank"
"""In the message of a rank whose own state could be saved."""
_LONGEST_REFUSAL = 600


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
    return refused if enough or any(message_of(alert) for alert in refused) else []


def message_of(alert: Alert) -> str:
    """Return the message about the command line in the rank's last words; empty: there is none."""
    tail = str(alert.evidence.get("log_tail") or "")
    found = _MESSAGE.findall(tail) if _USAGE.search(tail) else []
    return str(found[-1]).strip("│| ")[:_LONGEST] if found else ""


def refusal(roots: Sequence[Alert]) -> str:
    """Return why the Session refused the script, if that explains all ``roots``: the same script is refused again.

    Empty otherwise. A rank that only heard of the refusal on another rank does not name the reason.
    """
    if any(each.evidence.get("error_type") != BY_SESSION or each.evidence.get("signal") for each in roots):
        return ""
    messages = [str(each.evidence.get("message") or BY_SESSION) for each in roots]
    named = [message for message in messages if ELSEWHERE not in message]
    return (named or messages or [""])[0][:_LONGEST_REFUSAL]


def is_refusal(alert: Alert) -> bool:
    """Return whether a rank ended with a word about its command line: that of every rank, whatever its machine."""
    return _refused(alert) and bool(message_of(alert))


def _refused(alert: Alert) -> bool:
    evidence = alert.evidence
    if evidence.get("signal") or evidence.get("error_type") or evidence.get("cause"):
        return False  # many a program ends so when it cannot read a file
    return evidence.get("exit_code") == STATUS
