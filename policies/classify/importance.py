"""Importance of an alert, for when there are too many: cascading failures give way to evidence, evidence to signs."""

from __future__ import annotations

from enum import IntEnum

from holdfast.models.alert import HUMAN_KINDS, Alert, AlertKind
from holdfast.models.alert_kinds.meaning import Acts
from holdfast.policies.classify import exits
from holdfast.policies.classify.meaning import meaning
from holdfast.policies.config.policy import ClassifyPolicy


class Importance(IntEnum):
    """Importance of an alert; a higher value is more important."""

    ECHO = 0
    """A rank that only lost its peer."""
    EVIDENCE = 1
    """Opens no incident by itself."""
    SIGN = 2
    """May be the root: acts alone, a rank that failed by itself, or what a person asks for."""


_SIGNS = HUMAN_KINDS | {AlertKind.RANK_EXIT}


def importance(alert: Alert, policy: ClassifyPolicy) -> Importance:
    """Return the importance of one alert, from its kind and evidence alone."""
    if exits.is_cascade(alert):
        return Importance.ECHO
    if alert.kind in _SIGNS or meaning(alert, policy).acts is Acts.ALONE:
        return Importance.SIGN
    return Importance.EVIDENCE
