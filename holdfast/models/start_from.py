"""The state of another job, or of another program, from which a job starts: `start_from` of the job file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from holdfast.models.base import Frozen
from holdfast.models.names import JobName


class StartFrom(Frozen):
    """A checkpoint in S3 of another job, or a folder that ``torch.distributed.checkpoint`` wrote."""

    job: JobName | None = Field(None, description="Job whose checkpoint it is.")
    step: int | Literal["newest"] = Field(
        "newest",
        description="Its step in S3; newest: the newest one at submission. Only with `job`.",
    )
    epoch: int | None = Field(
        None, ge=1, description="Its epoch, where several have the step. Filled in at submission."
    )
    path: str | None = Field(
        None,
        description="Folder that all machines see, or s3://bucket/prefix (or the URL of another store), instead of "
        "`job`.",
    )
    parts: dict[str, str] | None = Field(
        None,
        description="Parts of the state to take: a list, or a mapping from the part here to the name there. Left out: "
        "all, and steps count on from there.",
    )

    @field_validator("step", mode="before")
    @classmethod
    def _step_is_a_number_or_newest(cls, value: Any) -> Any:
        whole = str(value).isdecimal() and int(value) > 0
        if not whole and value != "newest":
            raise ValueError(f"{value!r}: expected a step that was saved, 1 or later, or newest")
        return value

    @field_validator("path")
    @classmethod
    def _path_is_whole(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        in_store = parts.scheme and parts.netloc and parts.path.strip("/")
        if not (in_store or value.startswith("/")):
            raise ValueError(
                f"{value!r}: expected an absolute folder that all machines see, or s3://bucket/prefix"
            )
        return value

    @field_validator("parts", mode="before")
    @classmethod
    def _parts_may_be_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f"{value!r}: expected a list, such as [{value}], or a mapping of names")
        if isinstance(value, Sequence):
            return {each: each for each in value}
        return value

    @field_validator("parts")
    @classmethod
    def _each_part_has_a_source_of_its_own(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if value is not None and not value:
            raise ValueError("it names no part: leave it out to take all")
        if value is not None and len(set(value.values())) < len(value):
            raise ValueError(f"{value}: two parts have the same source")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> StartFrom:
        if (self.job is None) == (self.path is None):
            raise ValueError("expected one of job and path")
        if self.path is not None and (self.step != "newest" or self.epoch is not None):
            raise ValueError("step and epoch are of a job: a path is one checkpoint")
        return self

    @property
    def store_and_prefix(self) -> tuple[str, str] | None:
        """URL of the store, such as ``s3://bucket``, and the prefix there; None: it is a folder, or a job's."""
        if self.path is None or self.path.startswith("/"):
            return None
        parts = urlsplit(self.path)
        return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")

    @property
    def first_step(self) -> int:
        """Steps that count as done: the source's, where its whole state is taken."""
        return self.step if self.parts is None and isinstance(self.step, int) else 0

    @property
    def title(self) -> str:
        """The source in words."""
        source = self.path if self.path is not None else f"job {self.job} step {self.step}"
        if self.parts is None:
            return str(source)
        named = (here if here == there else f"{here} = {there or '.'}" for here, there in self.parts.items())
        return f"{source} ({', '.join(named)})"
