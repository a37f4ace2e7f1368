"""An enumeration that other packages may add names to."""

from __future__ import annotations

import re
from enum import Enum, StrEnum
from typing import Self

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class OpenEnum(StrEnum):
    """Its members are the built-in names; declared ones are valid values too, and equal and identical per name.

    Iteration and ``len`` see the built-in names only. A name that was not declared is refused as in any
    enumeration, so that a typing error in a file does not pass for an extension.
    """

    @classmethod
    def declare(cls, name: str) -> Self:
        """Return the member called ``name``, made if there is none yet.

        Raises:
            ValueError: no lower-case identifier of at most 32 characters.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name for a {cls.__name__}: expected a lower-case identifier such as "
                "thermal_throttling, at most 32 characters"
            )
        known = cls._value2member_map_.get(name)
        if known is None:
            known = str.__new__(cls, name)
            known._name_, known._value_ = name.upper(), name
            known = cls._value2member_map_.setdefault(name, known)
        assert isinstance(known, cls)
        return known

    @classmethod
    def all_names(cls) -> list[str]:
        """Return the built-in names, then declared ones."""
        return [str(member.value) for member in cls._value2member_map_.values()]

    @classmethod
    def _missing_(cls, value: object) -> Enum | None:
        """For pydantic, which keeps a table of its own of the built-in members."""
        return cls._value2member_map_.get(value)
