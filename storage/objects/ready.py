"""Importing this makes a process ready for S3, and those that are forked from it later: see ``s3_client.get_ready``."""

from __future__ import annotations

from holdfast.storage.objects import s3, s3_client  # noqa: F401  (the store too, so that no fork imports it)

s3_client.get_ready()
