"""A command whose last argument is a number: one below zero is a wrong number, not an option that there is not."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

_BELOW_ZERO = re.compile(r"-\d+(\.\d*)?")


class OfNumber(TyperCommand):
    """Refuses numbers below zero in words of its argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, unless a number below zero stands where no option wants a value."""
        for before, each in zip(["", *args], args, strict=False):
            if _BELOW_ZERO.fullmatch(each) and not before.startswith("--"):
                raise typer.BadParameter(
                    f"{each}: expected a whole number, 0 or more, such as `holdfast scale gpt 4`",
                    ctx,
                    param_hint="'N'",
                )
        return super().parse_args(ctx, args)
