"""Importing this makes a process ready for S3, and those that are forked from it later: see ``s3.get_ready``."""

from __future__ import annotations

from holdfast.storage.objects import s3

s3.get_ready()
