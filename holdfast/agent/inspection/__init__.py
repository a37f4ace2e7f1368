"""Inspection of the machine on intervals: one small file per detector, none of them loads the GPU."""

from __future__ import annotations

from holdfast.agent.inspection.inspector import Inspector

__all__ = ["Inspector"]
