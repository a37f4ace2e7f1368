"""A new playbook: its flow, policy entry, test and deployment; or nothing at all, with the reason."""

from __future__ import annotations

import keyword
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template

import yaml

from holdfast import plugins
from holdfast.errors import RefusedError, SettingsError
from holdfast.models.alert import IncidentClass
from holdfast.plugins import EntryPoints
from holdfast.scaffold import templates

_SECTION = '[project.entry-points."holdfast.playbooks"]'
_LONGEST = 32


def write(name: str, folder: Path, package: str = "") -> list[Path]:
    """Write playbook ``name`` into the repository ``folder``, which is made if it is not there.

    A repository that has playbooks already gets this one beside them. Everything is checked before anything is
    written.

    Args:
        name: of the incident class, the flow's function and its module.
        folder: the repository.
        package: Python package of a new repository; empty: after the folder.

    Returns:
        the files that were written or changed.

    Raises:
        SettingsError: a name or the folder cannot be used.
        RefusedError: the playbook is there already, or the repository is something else.
    """
    _check_name(name)
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"repository {folder}: expected a folder, this is a file (--into)")
    texts = _added(name, folder) if (folder / "pyproject.toml").exists() else _new(name, folder, package)
    fresh = [path for path in texts if path.exists() and path.name not in _SHARED]
    if fresh:
        raise RefusedError(f"{fresh[0]} is there already: choose another name, or remove it")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(texts)


_SHARED = ("pyproject.toml", "policy.yaml", "prefect.yaml", "__init__.py")


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > _LONGEST or keyword.iskeyword(name):
        raise SettingsError(
            f"playbook name {name!r}: expected a lower-case Python identifier of at most {_LONGEST} characters, "
            "such as thermal_throttling"
        )
    if name in {str(member.value) for member in IncidentClass}:
        raise RefusedError(f"playbook {name!r} is one of Holdfast's own: choose another name")
    for found in plugins.installed(EntryPoints.PLAYBOOKS):
        if found.plugin.name == name:
            raise RefusedError(
                f"playbook {name!r} is in the installed package {found.plugin.package} already"
            )


def _fill(template: str, values: Mapping[str, str]) -> str:
    return Template(template).substitute(values)


def _values(name: str, package: str, project: str) -> dict[str, str]:
    words = name.replace("_", " ")
    return {
        "name": name,
        "flow": name.replace("_", "-"),
        "package": package,
        "project": project,
        "words": words,
    }


def _new(name: str, folder: Path, package: str) -> dict[Path, str]:
    project = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "playbooks"
    package = package or re.sub(r"^(?=\d)", "p", project.replace("-", "_"))
    if not package.isidentifier() or keyword.iskeyword(package) or package == "holdfast":
        raise SettingsError(
            f"package name {package!r}: expected a Python identifier other than holdfast (--package)"
        )
    if package == name:
        package = f"{package}_playbooks"
    values = _values(name, package, project)
    shared = {
        "pyproject.toml": templates.PYPROJECT,
        "prefect.yaml": templates.PREFECT,
        f"{package}/policy.yaml": templates.POLICY,
    }
    texts = {folder / path: _fill(text, values) for path, text in shared.items()}
    for path in (path for path in texts if path.exists()):
        raise RefusedError(
            f"{path} is there, and pyproject.toml beside it is not: choose an empty folder (--into)"
        )
    texts[folder / package / "__init__.py"] = f'"""Playbooks of {project}."""\n'
    return texts | _own(name, folder, values)


def _own(name: str, folder: Path, values: Mapping[str, str]) -> dict[Path, str]:
    """Return the files that only this playbook has."""
    return {
        folder / values["package"] / f"{name}.py": _fill(templates.FLOW, values),
        folder / "tests" / f"test_{name}.py": _fill(templates.TEST, values),
        folder / "tests" / f"{name}.yaml": _fill(templates.SCENARIOS, values),
    }


def _added(name: str, folder: Path) -> dict[Path, str]:
    """Return the files of a repository that has playbooks, with this one."""
    project, package, known = _repository(folder)
    if name in known:
        raise RefusedError(
            f"playbook {name!r} is in {folder / 'pyproject.toml'} already: choose another name"
        )
    values = _values(name, package, project)
    entry = _fill('$name = "$package.$name:$name"', values)
    pyproject, policy, prefect = (
        folder / "pyproject.toml",
        folder / package / "policy.yaml",
        folder / "prefect.yaml",
    )
    ladder, _, waits = _fill(templates.POLICY, values).partition("playbooks:\n")
    deployment = _fill(templates.PREFECT, values).partition("deployments:\n")[2]
    changed = {
        pyproject: _after(pyproject, _SECTION, entry),
        policy: _after(policy, "  classes:", ladder.partition("  classes:\n")[2].rstrip("\n")),
        prefect: _after(prefect, "deployments:", deployment.rstrip("\n")),
    }
    changed[policy] = _inserted(changed[policy], "playbooks:", waits.rstrip("\n"), policy)
    for path in (policy, prefect):
        yaml.safe_load(changed[path])
    return changed | _own(name, folder, values)


def _repository(folder: Path) -> tuple[str, str, set[str]]:
    """Return project, package and playbooks of an existing repository."""
    path = folder / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text())["project"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise SettingsError(f"{path}: cannot be read as a project's file ({error!r})") from None
    known = project.get("entry-points", {}).get("holdfast.playbooks")
    if not known:
        raise RefusedError(
            f"{path} is the project {project.get('name')!r}, which has no playbooks: choose another folder (--into)"
        )
    module = str(next(iter(known.values()))).partition(":")[0]
    return str(project["name"]), module.partition(".")[0], set(known)


def _after(path: Path, line: str, text: str) -> str:
    if not path.is_file():
        raise RefusedError(f"{path} is missing: restore it, or choose an empty folder (--into)")
    return _inserted(path.read_text(), line, text, path)


def _inserted(whole: str, line: str, text: str, path: Path) -> str:
    lines = whole.splitlines()
    if line not in lines:
        raise RefusedError(
            f"{path} has no line {line!r}, after which the entry goes: add it, or do it by hand"
        )
    at = lines.index(line) + 1
    return "\n".join([*lines[:at], *text.splitlines(), *lines[at:]]) + "\n"
