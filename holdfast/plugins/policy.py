"""The site's policy: the packaged one, the entries of installed playbooks, and the site's own file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast import plugins
from holdfast.errors import SettingsError
from holdfast.plugins import EntryPoints, Found
from holdfast.policies.config.policy import Policy
from holdfast.policies.config.policy_file import PolicyFile, parse

ENTRY_FILE = "policy.yaml"


def site_policy(path: Path | None = None, *, usable: bool = False) -> Policy:
    """Return the policy of this site. A package whose entry is wrong is named in an error and left out.

    Args:
        path: the site's own file (``HOLDFAST_POLICY_FILE``).
        usable: import the playbooks, and leave out the entries of those that cannot be: their alerts then keep
            their usual meaning.

    Raises:
        SettingsError: the site's own file is wrong.
    """
    plugins.declare()
    broken = {plugin.name for plugin in plugins.load(EntryPoints.PLAYBOOKS)[1]} if usable else set()
    entries: list[PolicyFile] = []
    for members in _by_package().values():
        try:
            entry = _entry(members)
            if entry is not None:
                Policy.load(entries=[*entries, entry])
                entries.append(entry)
        except SettingsError as error:
            members[0].broken(str(error))
            broken |= {found.plugin.name for found in members}
    return Policy.load(path, entries).without(broken)


def _by_package() -> dict[str, list[Found]]:
    packages: dict[str, list[Found]] = {}
    for found in plugins.installed(EntryPoints.PLAYBOOKS):
        if plugins.unfit(found):
            continue
        packages.setdefault(found.entry.module.partition(".")[0], []).append(found)
    return packages


def _entry(members: list[Found]) -> PolicyFile | None:
    """Return the package's policy entry, which may refer to its own classes only.

    Raises:
        SettingsError: it cannot be read, or it changes something else.
    """
    folder = _folder(members[0].entry.module.partition(".")[0])
    if folder is None or not (folder / ENTRY_FILE).is_file():
        return None
    entry = parse(folder / ENTRY_FILE)
    own = {found.plugin.name for found in members}
    foreign = [key for key in entry.values if key not in ("playbooks", "ladder")]
    foreign += [f"ladder.{key}" for key in _keys(entry.values, "ladder") if key != "classes"]
    classes = [("playbooks", _keys(entry.values, "playbooks"))]
    classes.append(("ladder.classes", _keys(entry.values, "ladder", "classes")))
    foreign += [f"{where}.{name}" for where, names in classes for name in names if name not in own]
    if foreign:
        raise SettingsError(
            f"policy file {entry.path}: {foreign[0]} is not the package's to set; it may have "
            f"playbooks and ladder.classes of {', '.join(sorted(own))}"
        )
    return entry


def _keys(values: Mapping[str, Any], *path: str) -> Iterable[str]:
    found: Any = values
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return list(found) if isinstance(found, Mapping) else []


def _folder(package: str) -> Path | None:
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None
