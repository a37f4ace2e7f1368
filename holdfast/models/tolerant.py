"""Read what another version sent: fields that this one does not know are ignored, and broken parts are left out.

Our own models refuse unknown fields, so that a misspelt one is found. What comes over the wire may be a release newer,
and must not end ranks for a field more, or for one number that is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
MOST_LEFT_OUT = 64
"""Parts that are left out of one message; what has more of them is refused."""
MOST_ERRORS = 16 * MOST_LEFT_OUT
"""Errors of one message, of which a part may have several; each round lists all of them."""


def read(model: type[Model], data: bytes) -> Model:
    """Return the message, all of it; unknown fields are ignored.

    Raises:
        ValidationError: something known is wrong.
    """
    return model.model_validate_json(data, extra="ignore")


def read_part(model: type[Model], data: bytes) -> tuple[Model, list[str]]:
    """Return the message without the parts that are wrong, and what these were: elements of lists, or optional fields.

    Raises:
        ValidationError: what is wrong cannot be left out.
    """
    try:
        return read(model, data), []
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            raise  # more than could be left out: of a message of 2 MB, minutes went into finding that
        content = pydantic_core.from_json(data) if _is_json(error) else None
        left_out: list[str] = []
        while content is not None and len(left_out) < MOST_LEFT_OUT:
            at = error.errors()[0]
            if not _leave_out(content, at["loc"]):
                raise
            left_out.append(f"{'.'.join(map(str, at['loc']))} = {at.get('input')!r:.100}: {at['msg']}")
            try:
                return model.model_validate(content, extra="ignore"), left_out
            except ValidationError as next_error:
                error = next_error
        raise error from None


def _is_json(error: ValidationError) -> bool:
    return all(each["type"] != "json_invalid" for each in error.errors())


def _leave_out(content: Any, loc: Sequence[str | int]) -> bool:
    """Remove the smallest part around ``loc`` that is valid on its own: an element of a list, else the field."""
    path = [content]
    for each in loc:
        try:
            path.append(path[-1][each])
        except (KeyError, IndexError, TypeError):
            break
    for depth in range(len(path) - 1, 0, -1):
        if isinstance(path[depth - 1], list):
            del path[depth - 1][loc[depth - 1]]
            return True
    if len(path) > 2 and isinstance(path[1], dict):  # within an optional part, such as the vitals
        del content[loc[0]]
        return True
    return False
