"""Data order that survives restarts and resizes: :class:`ElasticSampler` and :class:`ElasticLoader`."""

from __future__ import annotations

from holdfast.data.loader import ElasticLoader
from holdfast.data.sampler import ElasticSampler

__all__ = ["ElasticLoader", "ElasticSampler"]
