"""The tables of alert kinds in ``docs/detection.md``, from their declared rows.

``python -m tests.alert_kinds`` writes them; a test compares.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from holdfast.models.alert import AlertKind
from holdfast.models.alert_kinds.kind import Kind, SignalScope
from holdfast.models.alert_kinds.meaning import Acts, Beside
from holdfast.policies.config.policy import Policy
from tests.generated import DOCS, Part, table

_PAGE = DOCS / "detection.md"
_SCOPES = {
    Part(_PAGE, "alerts of machines"): (
        SignalScope.RANK,
        SignalScope.GPU,
        SignalScope.NETWORK,
        SignalScope.HOST,
    ),
    Part(_PAGE, "alerts of jobs"): (SignalScope.MACHINE, SignalScope.JOB),
    Part(_PAGE, "alerts of people"): (SignalScope.PERSON,),
}
PARTS = tuple(_SCOPES)
_FAILURES = {
    Beside.EXIT: "an exit",
    Beside.KILLED: "a killed rank",
    Beside.RAISED: "an exception",
    Beside.HANG: "a hang",
    Beside.SLOW: "a slow pace",
}


def written_by_code(part: Part) -> str:
    """The table of the kinds that ``part`` has."""
    rows = [kind.row for kind in AlertKind if kind.row.scope in _SCOPES[part]]
    return table(("kind", "what", "every", "thresholds", "incident", "evidence"), *map(_line, rows))


def default_of(setting: str) -> Any:
    """The packaged value of a setting below ``detect``; an error where there is no such setting."""
    return reduce(getattr, setting.split("."), Policy.load().detect)


def _line(row: Kind) -> tuple[str, ...]:
    every = f"`{row.every.removeprefix('intervals.')}` {default_of(row.every):g} s" if row.every else ""
    thresholds = ", ".join(f"`{name}`{_shown(default_of(name))}" for name in row.thresholds)
    return f"`{row.name}`", row.says, every, thresholds, _incident(row), row.evidence


def _shown(value: Any) -> str:
    return f" {value:g}" if isinstance(value, float) else f" {value}" if isinstance(value, int) else ""


def _incident(row: Kind) -> str:
    meaning = row.meaning
    beside = _any_of([text for failure, text in _FAILURES.items() if failure in meaning.beside])
    when = {
        Acts.ALONE: f"`{meaning.means}`, at once" + (f"; explains {beside}" if beside else ""),
        Acts.AGAIN: f"`{meaning.means}`, the second time, or beside {beside}",
        Acts.BESIDE: f"`{meaning.means}`, beside {beside}",
        Acts.NEVER: "" if row.unless else "none",
    }[meaning.acts]
    return "; ".join(filter(None, (when, row.unless)))


def _any_of(texts: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


if __name__ == "__main__":
    for each in PARTS:
        each.write(written_by_code(each))
