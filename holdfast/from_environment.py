"""The base of all classes of settings."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class FromEnvironment(BaseSettings):
    """Base of all classes of settings: those of every site, and those that drivers and packages declare."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", extra="ignore", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_not_set(cls, value: object, info: ValidationInfo) -> object:
        """Take an empty value for none where none is the default: an empty path would be the working directory."""
        field = cls.model_fields.get(info.field_name or "")
        unset = isinstance(value, str) and not value and field is not None and field.default is None
        return None if unset else value

    @field_validator("*")
    @classmethod
    def _absolute(cls, value: object, info: ValidationInfo) -> object:
        """Make paths absolute: other processes read the same settings from other folders."""
        return (
            value.expanduser().absolute() if isinstance(value, Path) and info.field_name != "home" else value
        )
