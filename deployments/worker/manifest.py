"""``prefect.yaml``, read by everything that needs to know which deployments there are: the one source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast import plugins
from holdfast.errors import SettingsError
from holdfast.plugins import EntryPoints

# In a checkout a link to the file in the repository's root, in a wheel a copy of it.
PATH = Path(__file__).resolve().parent.parent / "prefect.yaml"


class Schedule(BaseModel):
    """When a deployment runs by itself."""

    model_config = ConfigDict(frozen=True)

    cron: str
    timezone: str = "UTC"
    active: bool = True


class WorkPool(BaseModel):
    """Where runs of a deployment wait for a worker."""

    model_config = ConfigDict(frozen=True)

    name: str
    work_queue_name: str | None = None
    job_variables: dict[str, Any] = Field(default_factory=dict)


class Deployment(BaseModel):
    """One deployment, as Prefect's own file format has it."""

    model_config = ConfigDict(frozen=True)

    name: str
    entrypoint: str = Field(pattern=r"^[\w.]+:\w+$")
    description: str = ""
    tags: tuple[str, ...] = ()
    parameters: dict[str, Any] = Field(default_factory=dict)
    schedules: tuple[Schedule, ...] = ()
    concurrency_limit: int | None = None
    work_pool: WorkPool

    @property
    def module(self) -> str:
        """Module that holds the flow."""
        return self.entrypoint.partition(":")[0]


def read(path: Path = PATH) -> tuple[Deployment, ...]:
    """Return all deployments of ``path``.

    Raises:
        SettingsError: the file is missing, no YAML, or a deployment in it is malformed (named).
    """
    try:
        loaded = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: {error}. Reinstall holdfast, or restore prefect.yaml.") from None
    entries = loaded.get("deployments") if isinstance(loaded, Mapping) else None
    if not entries:
        raise SettingsError(
            f"{path} has no `deployments`: it should be Holdfast's prefect.yaml, not {loaded!r}"
        )
    return tuple(_deployment(entry, path) for entry in entries)


def of_packages() -> tuple[Deployment, ...]:
    """Return the importable playbooks of other packages, each with the deployment that the built-in ones have."""
    flows, _ = plugins.load(EntryPoints.PLAYBOOKS)
    entries = {found.plugin.name: found.plugin.value for found in plugins.installed(EntryPoints.PLAYBOOKS)}
    return tuple(
        Deployment(
            name=name.replace("_", "-"),
            entrypoint=entries[name],
            description=(flow.__doc__ or "").strip().partition("\n")[0],
            tags=("holdfast", "incident"),
            parameters={"incident": {}},
            work_pool=WorkPool(name="holdfast"),
        )
        for name, flow in flows.items()
    )


def all_deployments() -> tuple[Deployment, ...]:
    """Return those of ``prefect.yaml``, then those of other packages."""
    return (*read(), *of_packages())


def modules(deployments: tuple[Deployment, ...]) -> list[str]:
    """Return the modules that hold the flows, each once."""
    return sorted({deployment.module for deployment in deployments})


def _deployment(entry: Any, path: Path) -> Deployment:
    try:
        return Deployment.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        name = entry.get("name") if isinstance(entry, Mapping) else entry
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(
            f"{path}: deployment {name!r}, {where} = {first.get('input')!r}: {first['msg']}"
        ) from None
