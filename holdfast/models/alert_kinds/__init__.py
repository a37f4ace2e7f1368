"""Kinds of alerts: one declared row each, from which the rules about kinds and their table in the docs derive."""

from holdfast.models.alert_kinds.kinds import (
    GPU_KINDS,
    HOST_KINDS,
    HUMAN_KINDS,
    MACHINE_KINDS,
    NETWORK_KINDS,
    AlertKind,
)

__all__ = ["GPU_KINDS", "HOST_KINDS", "HUMAN_KINDS", "MACHINE_KINDS", "NETWORK_KINDS", "AlertKind"]
