"""Short texts that an expression matches, together through every one of its alternatives."""

from __future__ import annotations

import re
import re._parser as parser  # type: ignore[import-not-found]
from typing import Any

_CLASSES = {"DIGIT": "1", "WORD": "w", "SPACE": " ", "NOT_DIGIT": "d", "NOT_WORD": " ", "NOT_SPACE": "s"}
_MOST = 400


def samples(regex: str) -> list[str]:
    """Texts that ``regex`` matches; what a look-around forbids is left out."""
    return [text for text in _of(parser.parse(regex)) if re.search(regex, text)]


def _of(nodes: Any) -> list[str]:
    found = [""]
    for code, argument in nodes:
        choices = _choices(str(code), argument)
        longest = max(len(choices), len(found)) if len(choices) > 1 else len(found)
        pairs = [found[n % len(found)] + choices[n % len(choices)] for n in range(longest)]
        found = list(dict.fromkeys(pairs))[:_MOST]
    return found


def _choices(code: str, argument: Any) -> list[str]:  # noqa: PLR0911  (a table)
    match code:
        case "LITERAL":
            return [chr(argument)]
        case "IN":
            return [_one_of(argument)]
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, _, part = argument
            return [text * least for text in _of(part)] if least else ["", *_of(part)]
        case "SUBPATTERN":
            return _of(argument[-1])
        case "BRANCH":
            return [text for part in argument[1] for text in _of(part)]
        case "AT" | "ASSERT" | "ASSERT_NOT":
            return [""]
    return ["x"]


def _one_of(members: Any) -> str:
    kind, value = members[0]
    if str(kind) == "LITERAL":
        return chr(value)
    if str(kind) == "RANGE":
        return chr(value[0])
    return _CLASSES.get(str(value).removeprefix("CATEGORY_"), "q")
