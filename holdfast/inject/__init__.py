"""Injected faults: real ones, done underneath the running system (demo, tests, game days)."""

from __future__ import annotations

from holdfast.inject.registry import FAULTS, Injected, inject

__all__ = ["FAULTS", "Injected", "inject"]
