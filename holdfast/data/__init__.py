"""Training data in an order that survives restarts and resizes: sources, mixes, `Dataset`; `ElasticSampler`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.data.dataset import Dataset
from holdfast.data.files import File
from holdfast.data.lease_book import LeaseBook
from holdfast.data.leased import LeasedSplits
from holdfast.data.packing import PackedDataset
from holdfast.data.partitions import between
from holdfast.data.places import Place
from holdfast.data.sources import Mix, Source, align, folder, fsspec, http, mix, s3, source

if TYPE_CHECKING:
    from holdfast.data.epoch_loader import EpochLoader
    from holdfast.data.lease_server import LeaseServer
    from holdfast.data.lease_state import lease_part
    from holdfast.data.loader import ElasticLoader
    from holdfast.data.sampler import ElasticSampler

__all__ = [
    "Dataset",
    "ElasticLoader",
    "ElasticSampler",
    "EpochLoader",
    "File",
    "LeaseBook",
    "LeaseServer",
    "LeasedSplits",
    "Mix",
    "PackedDataset",
    "Place",
    "Source",
    "align",
    "between",
    "folder",
    "fsspec",
    "http",
    "lease_part",
    "mix",
    "s3",
    "source",
]


_LATER = {
    "ElasticLoader": "holdfast.data.loader",
    "ElasticSampler": "holdfast.data.sampler",
    "EpochLoader": "holdfast.data.epoch_loader",
    "LeaseServer": "holdfast.data.lease_server",
    "lease_part": "holdfast.data.lease_state",
}
"""Modules that need torch or a server's libraries are imported on use: workers that only read start without them."""


def __getattr__(name: str) -> Any:
    """Import what is used."""
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
