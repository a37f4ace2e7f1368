"""Plug-ins of other packages, by entry points: detectors, diagnosers, drivers, stores, commands and playbooks.

A package names its object in its own ``pyproject.toml``::

    [project.entry-points."holdfast.detectors"]
    fan_speed = "acme_holdfast.fans:FanSpeed"

==================== ==============================================================================================
group                object
==================== ==============================================================================================
holdfast.detectors   ``(machine, home, settings) -> Detector`` (:mod:`holdfast.agent.inspection.base`), on agents
holdfast.diagnosers  ``(machine, command) -> list[Finding]``: a stop-time check, by name in a ladder's ``tiers``
holdfast.commands    ``(machine, home, values) -> dict``: what a playbook may have done on a machine
holdfast.drivers     ``(settings) -> Driver`` (:mod:`holdfast.drivers.base`), by name in ``HOLDFAST_DRIVER``
holdfast.stores      a ``StoreKind`` (:mod:`holdfast.storage.objects.base`), by the scheme of ``HOLDFAST_STORE``
holdfast.settings    the class of a package's own settings (:class:`holdfast.settings.FromEnvironment`), named after its
                     prefix: ``acme`` for ``HOLDFAST_ACME_``
holdfast.playbooks   the playbook's flow, named after its incident class; the policy entry is the package's
                     ``policy.yaml``
==================== ==============================================================================================

A package that is broken is named in an error with what went wrong, and left out; nothing else suffers. Holdfast's own
drivers and stores are entries of the same kind (:data:`OWN`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from holdfast.errors import SettingsError
from holdfast.models.agent import Check
from holdfast.models.alert import IncidentClass
from holdfast.models.base import Frozen

if TYPE_CHECKING:
    from holdfast.from_environment import FromEnvironment

_log = logging.getLogger(__name__)

PLAYBOOK = "holdfast_class"
"""Attribute of the function of a playbook's flow: the incident class that it takes up."""


class EntryPoints(StrEnum):
    """The entry point groups."""

    DETECTORS = "holdfast.detectors"
    DIAGNOSERS = "holdfast.diagnosers"
    COMMANDS = "holdfast.commands"
    DRIVERS = "holdfast.drivers"
    STORES = "holdfast.stores"
    SETTINGS = "holdfast.settings"
    PLAYBOOKS = "holdfast.playbooks"


class Plugin(Frozen):
    """One object that a package brings, and what is wrong with it."""

    group: EntryPoints
    name: str
    value: str
    """``module:attribute``."""
    package: str
    version: str
    error: str = ""
    """Empty: it loads."""

    def __str__(self) -> str:
        return f"{self.group} {self.name!r} of package {self.package} {self.version}"


@dataclass(frozen=True)
class Found:
    """An entry point and how it presents itself."""

    plugin: Plugin
    entry: EntryPoint

    def broken(self, error: str) -> Plugin:
        """Log the error and return the plug-in with it."""
        _log.error("plug-in %s is broken and left out: %s. Fix or uninstall the package.", self.plugin, error)
        return self.plugin.model_copy(update={"error": error})


def installed(group: EntryPoints) -> list[Found]:
    """Return the entry points of ``group`` in order of package and name; nothing is imported."""
    listed = []
    for entry in entry_points(group=group.value):
        package = entry.dist.name if entry.dist else "unknown"
        version = entry.dist.version if entry.dist else "unknown"
        plugin = Plugin(group=group, name=entry.name, value=entry.value, package=package, version=version)
        listed.append(Found(plugin, entry))
    return sorted(listed, key=lambda found: (found.plugin.package, found.plugin.name))


def load(group: EntryPoints) -> tuple[dict[str, Any], list[Plugin]]:
    """Import what ``group`` brings: objects by name, and what is broken (logged). Never raises."""
    objects: dict[str, Any] = {}
    broken = []
    for found in installed(group):
        if wrong := unfit(found, objects):
            broken.append(found.broken(wrong))
            continue
        try:
            objects[found.plugin.name] = _checked(found, found.entry.load())
        except (Exception, SystemExit) as error:  # whatever foreign code raises
            broken.append(found.broken(in_one_line(error)))
    return objects, broken


def make(group: EntryPoints, *arguments: Any) -> dict[str, Any]:
    """Make the objects of ``group`` from ``arguments`` by their factories; one that fails is logged and left out."""
    made = {}
    factories, _ = load(group)
    for found in installed(group):
        factory = factories.get(found.plugin.name)
        if factory is None:
            continue
        try:
            one = factory(*arguments)
            _require(one, group, type(one).__name__)
            made[found.plugin.name] = one
        except (Exception, SystemExit) as error:
            found.broken(in_one_line(error))
    return made


def load_one(group: EntryPoints, name: str) -> Any:
    """Return the object called ``name``: one of Holdfast's own, or a package's.

    Raises:
        SettingsError: no package brings it, or it cannot be imported.
    """
    return _load_one(group, name)[0]


def make_one(group: EntryPoints, name: str, *arguments: Any) -> Any:
    """Return what the factory called ``name`` makes of ``arguments``: one of Holdfast's own, or a package's.

    Raises:
        SettingsError: no package brings it, or it is broken. Other errors of Holdfast's own factories come as they are.
    """
    factory, found = _load_one(group, name)
    if found is None:
        return factory(*arguments)
    try:
        return factory(*arguments)
    except (Exception, SystemExit) as error:
        raise _is_broken(found, error) from error


def own_settings() -> dict[str, type[FromEnvironment]]:
    """Return the classes of settings that Holdfast's own drivers declare, by name."""
    return {name: load_one(EntryPoints.SETTINGS, name) for name in OWN[EntryPoints.SETTINGS]}


@functools.cache
def all_settings() -> dict[str, type[FromEnvironment]]:
    """Return the classes of settings that drivers and installed packages declare; broken ones are logged, once."""
    return own_settings() | load(EntryPoints.SETTINGS)[0]


def _load_one(group: EntryPoints, name: str) -> tuple[Any, Found | None]:
    """Return the object called ``name``, and the package's entry; None: it is one of Holdfast's own."""
    own = OWN.get(group, {})
    if name in own:
        return EntryPoint(name, own[name], group.value).load(), None
    known = {found.plugin.name: found for found in installed(group)}
    if name not in known:
        expected = ", ".join([*own, *known])
        raise SettingsError(f"no {group} {name!r}: expected one of {expected} (or install the package)")
    try:
        return _checked(known[name], known[name].entry.load()), known[name]
    except (Exception, SystemExit) as error:
        raise _is_broken(known[name], error) from error


def _is_broken(found: Found, error: BaseException) -> SettingsError:
    return SettingsError(
        f"plug-in {found.plugin} is broken: {in_one_line(error)}. Fix or uninstall the package."
    )


@functools.cache
def declare() -> None:
    """Make the names of incident classes and checks known that installed packages bring; imports nothing."""
    for group, kind in ((EntryPoints.PLAYBOOKS, IncidentClass), (EntryPoints.DIAGNOSERS, Check)):
        for found in installed(group):
            if not unfit(found):
                kind.declare(found.plugin.name)


def in_one_line(error: BaseException) -> str:
    """Describe an error of foreign code in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")


def _checked(found: Found, one: Any) -> Any:
    if found.plugin.group is EntryPoints.SETTINGS:
        prefix = f"HOLDFAST_{found.plugin.name.upper()}_"
        if getattr(one, "model_config", {}).get("env_prefix") != prefix:
            raise TypeError(f"{found.plugin.value} is no class of settings with the prefix {prefix}")
        return one
    if found.plugin.group is EntryPoints.STORES:
        _require(one, EntryPoints.STORES, found.plugin.value)
        return one
    if found.plugin.group is not EntryPoints.PLAYBOOKS:
        if not callable(one):
            raise TypeError(f"{found.plugin.value} is not callable")
        return one
    if not hasattr(one, "fn"):
        raise TypeError(
            f"{found.plugin.value} is no playbook: expected a function {found.plugin.name} under `@playbook(would=...)`"
        )
    if not hasattr(one.fn, PLAYBOOK):
        raise TypeError(f"{found.plugin.value} is a flow, and no playbook: it has no `@playbook(would=...)`")
    flow = found.plugin.name.replace("_", "-")
    if one.name != flow:
        raise TypeError(
            f"{found.plugin.value} is a flow called {one.name!r}: expected {flow!r}, which its deployment and "
            f"runs go by (a function {found.plugin.name}, and no `name` in `with_options`)"
        )
    return one


def unfit(found: Found, taken: Collection[str] = ()) -> str:
    """Return why the plug-in's name cannot be used; empty when it can."""
    plugin = found.plugin
    if plugin.name in taken:
        return f"the name {plugin.name!r} is taken by another package"
    if plugin.name in _TAKEN.get(plugin.group, OWN.get(plugin.group, ())):
        return f"the name {plugin.name!r} is one of Holdfast's own"
    try:
        if plugin.group in (EntryPoints.PLAYBOOKS, EntryPoints.DIAGNOSERS):
            (IncidentClass if plugin.group is EntryPoints.PLAYBOOKS else Check).declare(plugin.name)
    except ValueError as error:
        return str(error)
    return ""


def _require(one: Any, group: EntryPoints, called: str) -> None:
    if missing := [name for name in _REQUIRED.get(group, ()) if not hasattr(one, name)]:
        raise TypeError(f"{called} has no {', '.join(missing)}")


OWN: dict[EntryPoints, dict[str, str]] = {
    EntryPoints.DRIVERS: {
        "local": "holdfast.drivers.own:local",
        "slurm": "holdfast.drivers.own:slurm",
        "kubernetes": "holdfast.drivers.own:kubernetes",
    },
    EntryPoints.STORES: {"s3": "holdfast.storage.objects.s3_kind:S3"},
    EntryPoints.SETTINGS: {
        "slurm": "holdfast.drivers.slurm_settings:SlurmSettings",
        "kubernetes": "holdfast.drivers.kubernetes_settings:KubernetesSettings",
    },
}
"""Holdfast's own objects, as entry points name theirs: ``module:attribute`` by name. Their names are taken."""

_REQUIRED = {
    EntryPoints.DETECTORS: ("name", "interval_s", "blocking", "poll", "inspect"),
    EntryPoints.STORES: ("arguments", "connect"),
}
_TAKEN: dict[EntryPoints, Collection[str]] = {
    EntryPoints.PLAYBOOKS: {str(member.value) for member in IncidentClass},
    EntryPoints.DIAGNOSERS: {str(member.value) for member in Check},
}
