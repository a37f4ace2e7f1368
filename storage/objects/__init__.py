"""Object stores: where checkpoints and code versions outlive every machine."""

from holdfast.storage.objects.base import Body, ObjectInfo, ObjectStore, StoreKind, Unfinished
from holdfast.storage.objects.configure import arguments, connect, from_settings

__all__ = [
    "Body",
    "ObjectInfo",
    "ObjectStore",
    "StoreKind",
    "Unfinished",
    "arguments",
    "connect",
    "from_settings",
]
