"""YAML of people: bounded in what it holds, and a value that cannot be made is named with its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

MOST_BYTES = 4 << 20
"""Of a file. Python takes some ten seconds to read as much."""
MOST_VALUES = 200_000
"""In a file, each alias (`*`) counted as all that it stands for: a few lines of them can stand for billions."""
MOST_CHARS = 4 * MOST_BYTES
"""Of all values together, counted in the same way."""
_SHOWN_CHARS = 80
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NUMBERS = {
    _INT: re.compile(r"[-+]?(?:[0-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"),
    _FLOAT: re.compile(
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
    ),
}
"""Numbers as they look: to PyYAML 1:30 is one as well, namely 90."""
_DECIMAL = re.compile(r"[-+]?[0-9][0-9_]*")


class YamlTooLargeError(Exception):
    """The file, or what its aliases stand for, is more than anyone writes."""


def read(path: Path) -> str:
    """Return the text of a file, also of a pipe.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        YamlTooLargeError: it has more than ``MOST_BYTES``.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise YamlTooLargeError(f"it has more than {MOST_BYTES} bytes: name a file of settings, not of data")
    return content.decode("utf-8")


class Budget:
    """The values that a file may still hold."""

    def __init__(self) -> None:
        self._values, self._chars = MOST_VALUES, MOST_CHARS

    def take(self, node: yaml.Node) -> None:
        """Count one value.

        Raises:
            YamlTooLargeError: nothing is left.
        """
        self._values -= 1
        self._chars -= len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if self._values < 0:
            raise YamlTooLargeError(
                f"with what its aliases (`*`) stand for it has more than {MOST_VALUES:,} values: write fewer of them"
            )
        if self._chars < 0:
            raise YamlTooLargeError(
                f"with what its aliases (`*`) stand for it has more than {MOST_CHARS >> 20} MiB of text: "
                "write less of it"
            )


class Loader(yaml.SafeLoader):
    """Makes values of nodes; of PyYAML's own errors for values that look like a number or a date few say where.

    Numbers are what they look like, as in YAML 1.2: 010 is ten, not eight, and 1:30 is text.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of ``node``.

        Raises:
            ConstructorError: there is none, such as a date in February that there is not, or half a character.
        """
        try:
            if isinstance(node, yaml.ScalarNode):
                node.value.encode()
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            text: Any = node.value
            shown = repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(
                None, None, f"{shown} cannot be read as {kind}; text stands in quotes", node.start_mark
            ) from error

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number; a zero before it does not make it octal."""
        return int(node.value) if _DECIMAL.fullmatch(node.value) else super().construct_yaml_int(node)


Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in known]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_constructor(_INT, Loader.construct_yaml_int)
