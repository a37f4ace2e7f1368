"""The section of failure domains in the policy file."""

from __future__ import annotations

from pydantic import Field, field_validator

from holdfast.models.base import Given
from holdfast.models.location import DomainName, LevelName


class TopologyPolicy(Given):
    """Machines that share a rack, a switch, an NVLink domain."""

    domains: dict[LevelName, dict[DomainName, tuple[str, ...]]] = Field(default_factory=dict)
    """Level to domain to shell patterns of machine names."""

    @field_validator("domains")
    @classmethod
    def _domains_have_machines(
        cls, domains: dict[str, dict[str, tuple[str, ...]]]
    ) -> dict[str, dict[str, tuple[str, ...]]]:
        for level, named in domains.items():
            if empty := [name for name, patterns in named.items() if not patterns]:
                raise ValueError(
                    f"{level} {empty[0]} names no machine: give shell patterns, such as [node-0*]"
                )
        return domains
