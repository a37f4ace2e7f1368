"""More checks of ``holdfast doctor``: what a new site gets wrong beside the machine itself. None of them raises."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import httpx
from packaging.requirements import Requirement
from packaging.version import Version

from holdfast import plugins, redact, tls
from holdfast.cli.doctor_check import DoctorCheck
from holdfast.errors import HoldfastError
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.objects import ObjectStore

CLOCK_LIMIT_S = 2.0
_DRIVER = Path("/proc/driver/nvidia/version")


def prefect(
    installed: Callable[[str], str] = metadata.version,
    required: Callable[[str], list[str] | None] = metadata.requires,
) -> list[DoctorCheck]:
    """Compare the versions of Prefect and of packages that it breaks with, with those that this Holdfast requires."""
    wanted = [Requirement(line) for line in required("holdfast") or ()]
    named = {"prefect", "fastapi", "sqlalchemy"}
    return [_version(one, installed) for one in wanted if one.name.lower() in named]


def _version(wanted: Requirement, installed: Callable[[str], str]) -> DoctorCheck:
    name, advice = wanted.name.lower(), f"pip install '{wanted.name}{wanted.specifier}'"
    try:
        found = installed(name)
    except metadata.PackageNotFoundError:
        here = "not installed: this machine can run agents, not the control plane"
        return DoctorCheck(name=f"{name} version", ok=True, found=here)
    ok = Version(found) in wanted.specifier
    shown = found if ok else f"{found}, tested with {wanted.specifier}"
    return DoctorCheck(name=f"{name} version", ok=ok, found=shown, advice="" if ok else advice)


def nvml(driver: Path = _DRIVER, library: Any = None) -> DoctorCheck:
    """Check that the library of the NVIDIA driver, where there is one, answers and sees GPUs."""
    if library is None:
        library = import_module("pynvml")
    try:
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
    except Exception as error:  # the library's own errors, and a library that is not there
        if not driver.exists():
            return DoctorCheck(name="nvml", ok=True, found="no NVIDIA driver: no GPUs are watched here")
        advice = "the driver is loaded and its library is not usable: in a container give it the utility capability "
        advice += "(NVIDIA_DRIVER_CAPABILITIES=compute,utility); after a driver update reboot"
        return DoctorCheck(name="nvml", ok=False, found=str(error) or type(error).__name__, advice=advice)
    advice = "" if count else "the driver sees no GPU: look at `nvidia-smi` and the kernel log"
    return DoctorCheck(name="nvml", ok=count > 0, found=f"{count} GPUs", advice=advice)


def clock(settings: Settings, now: Callable[[], float] = time.time) -> DoctorCheck:
    """Compare this machine's clock with the gateway's (and S3's): signatures and step times depend on it."""
    off: dict[str, float] = {}
    asked: tuple[tuple[str, str, Callable[[], dict[str, Any]]], ...] = (
        ("the gateway", f"{settings.gateway}/healthz", tls.of(settings).http),
        *((("S3", settings.s3, lambda: {"verify": tls.of_s3()}),) if settings.stored_in_s3 else ()),
    )
    for name, url, trusted in asked:
        try:
            date = httpx.get(url, timeout=2.0, trust_env=False, **trusted()).headers.get("date")
        except (httpx.HTTPError, OSError):
            continue
        if date:
            off[name] = now() - parsedate_to_datetime(date).timestamp()
    if not off:
        return DoctorCheck(name="clock", ok=True, found="nothing to compare it with: services are down")
    name, seconds = max(off.items(), key=lambda item: abs(item[1]))
    # A date in a header has whole seconds.
    ok = abs(seconds) <= CLOCK_LIMIT_S + 1.0
    found = f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} {name}"
    advice = (
        "" if ok else "let chrony or systemd-timesyncd keep it: `timedatectl set-ntp true` on every machine"
    )
    return DoctorCheck(name="clock", ok=ok, found="agrees" if ok else found, advice=advice)


def store_rights(
    settings: Settings, store: Callable[[Settings], ObjectStore] = objects.from_settings
) -> DoctorCheck:
    """Write, read, list and delete in the store, with an object of its own."""
    name = "s3 rights" if settings.stored_in_s3 else "store rights"
    where = repr(settings.bucket) if settings.stored_in_s3 else redact.passwords(settings.store_url)
    key = f"doctor/{uuid.uuid4().hex}"
    doing = "open"
    try:
        there = store(settings)
        for right, act in _RIGHTS.items():
            doing = right
            act(there, key)
    except HoldfastError as error:
        advice = f"{where}: allow it, or fix HOLDFAST_STORE and its credentials"
        if settings.stored_in_s3:
            advice = f"bucket {where}: allow s3:PutObject, GetObject, ListBucket, DeleteObject, AbortMultipartUpload, "
            advice += "ListBucketMultipartUploads and ListMultipartUploadParts to "
            whose = repr(settings.s3_access_key) if settings.s3_credentials == "keys" else "this host's role"
            advice += f"{whose}, or fix HOLDFAST_S3_* (docs/settings.md)"
        return DoctorCheck(name=name, ok=False, found=f"cannot {doing}: {error}", advice=advice)
    return DoctorCheck(name=name, ok=True, found=f"write, read, list and delete in {where}")


def _read(store: ObjectStore, key: str) -> None:
    if bytes(store.get(key)) != b"doctor":
        raise HoldfastError("what was read is not what was written")


def _list(store: ObjectStore, key: str) -> None:
    if key not in [each.key for each in store.list("doctor/")]:
        raise HoldfastError("what was written is not listed")


_RIGHTS: dict[str, Callable[[ObjectStore, str], Any]] = {
    "write": lambda store, key: store.put(key, b"doctor"),
    "read": _read,
    "list": _list,
    "delete": lambda store, key: store.delete(key),
}


def plug_ins() -> list[DoctorCheck]:
    """Check that every plug-in of an installed package can be loaded. None installed: nothing to report."""
    checks = []
    for group in plugins.EntryPoints:
        loaded, broken = plugins.load(group)
        for plugin in broken:
            advice = f"fix or uninstall the package {plugin.package}"
            checks.append(
                DoctorCheck(name="plug-in", ok=False, found=f"{plugin}: {plugin.error}", advice=advice)
            )
        checks += [DoctorCheck(name="plug-in", ok=True, found=f"{group} {name!r}") for name in loaded]
    return checks
