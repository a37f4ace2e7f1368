"""How much an alert says, when there are more than anybody reads: an echo gives way to evidence, evidence to a sign."""

from __future__ import annotations

from enum import IntEnum

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.classify import exits
from holdfast.policies.classify.meaning import Acts, meaning
from holdfast.policies.config.policy import ClassifyPolicy


class Importance(IntEnum):
    """The more, the higher."""

    ECHO = 0
    """A rank that only lost its peer."""
    EVIDENCE = 1
    """Opens no incident by itself."""
    SIGN = 2
    """May be the root: acts alone, a rank that failed by itself, or what a person asks for."""


_SIGNS = frozenset({AlertKind.RANK_EXIT, AlertKind.MANUAL, AlertKind.CODE_UPDATE})


def importance(alert: Alert, policy: ClassifyPolicy) -> Importance:
    """Of one alert, by its kind and evidence alone."""
    if exits.is_cascade(alert):
        return Importance.ECHO
    if alert.kind in _SIGNS or meaning(alert, policy).acts is Acts.ALONE:
        return Importance.SIGN
    return Importance.EVIDENCE
