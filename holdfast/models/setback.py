"""Failed saves of a machine, reported while the job runs on."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from holdfast.models.base import Finite, Frozen


class Place(StrEnum):
    """Where something was to be saved."""

    SAVE = "save"
    """The first tier: the rank's own save of a step."""
    DISK = "disk"
    """A copy on the machine's own disk."""
    S3 = "s3"
    """A rank's part of a checkpoint in S3, or its end."""


class Setback(Frozen):
    """Saves to one place that failed, none of the same rank between them having gone well."""

    place: Place
    count: int = Field(ge=1)
    """Over all ranks of the machine."""
    since: Finite
    """When the first of them failed, Unix seconds of the machine's clock."""
    reason: str = Field(max_length=400)
    """Of the newest."""
