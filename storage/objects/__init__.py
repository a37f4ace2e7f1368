"""Object stores: where checkpoints and code versions outlive every machine."""

from holdfast.storage.objects.base import Body, ObjectInfo, ObjectStore
from holdfast.storage.objects.configure import from_settings

__all__ = ["Body", "ObjectInfo", "ObjectStore", "from_settings"]
