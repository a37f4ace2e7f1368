"""The training side: :class:`Session`, a handful of calls in a training script."""

from __future__ import annotations

from holdfast.session.keep.training_function import run
from holdfast.session.part import Part
from holdfast.session.session import Session

__all__ = ["Part", "Session", "run"]
