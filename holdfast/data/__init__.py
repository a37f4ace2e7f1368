"""Training data in an order that survives restarts and resizes: sources, mixes, `Dataset`; `ElasticSampler`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.data.dataset import Dataset
from holdfast.data.files import File
from holdfast.data.partitions import between
from holdfast.data.places import Place
from holdfast.data.sources import Mix, Source, align, folder, fsspec, http, mix, s3, source

if TYPE_CHECKING:
    from holdfast.data.loader import ElasticLoader
    from holdfast.data.sampler import ElasticSampler

__all__ = [
    "Dataset",
    "ElasticLoader",
    "ElasticSampler",
    "File",
    "Mix",
    "Place",
    "Source",
    "align",
    "between",
    "folder",
    "fsspec",
    "http",
    "mix",
    "s3",
    "source",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch only where it is used: workers that read data start without it."""
    if name == "ElasticLoader":
        from holdfast.data.loader import ElasticLoader  # noqa: PLC0415

        return ElasticLoader
    if name == "ElasticSampler":
        from holdfast.data.sampler import ElasticSampler  # noqa: PLC0415

        return ElasticSampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
