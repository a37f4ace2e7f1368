"""The result of one check of ``holdfast doctor``."""

from __future__ import annotations

from holdfast.models.base import Frozen


class DoctorCheck(Frozen):
    """One result: what was found, and what to do when it is not good."""

    name: str
    ok: bool
    found: str
    advice: str = ""
