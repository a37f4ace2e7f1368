"""Lint of words: docstrings, comments, messages, names and pages in plain field English.

``python -m tests.words`` prints each place with a word of ``tests/words.yaml``, and the word to use; `make check` does.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.parsed import parsed

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".yaml")
READ = ("*.py", "*.md", "*.yaml", "*.js", "*.html", "Makefile")
KINDS = ("docstring", "comment", "message", "name", "page")


@dataclass(frozen=True)
class Rule:
    """A banned word, as a pattern, the word to use, and the kinds of text that must not have it."""

    pattern: re.Pattern[str]
    use: str
    where: frozenset[str]

    def may_be_in(self, source: str) -> bool:
        """Whether the source has the word at all; the beginning of a docstring can be anywhere in a file."""
        return re.search(self.pattern.pattern.removeprefix(r"\A\s*"), source) is not None


@dataclass(frozen=True)
class Exempt:
    """A place that may keep a banned word."""

    path: re.Pattern[str]
    text: re.Pattern[str]


@dataclass(frozen=True)
class Piece:
    """A piece of text in a file: one docstring, comment, message or line of a page."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class Table:
    """Rules and exemptions."""

    rules: tuple[Rule, ...]
    exempt: tuple[Exempt, ...]
    skip: re.Pattern[str]

    @classmethod
    def read(cls, path: Path = TABLE) -> Table:
        """The table in the file; each exemption needs a reason."""
        raw = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        missing = [each for each in raw["exempt"] if not each.get("reason")]
        if missing:
            raise ValueError(f"{path}: give a reason for {missing}")
        return cls(
            tuple(
                Rule(re.compile(each["word"]), each["use"], frozenset(each.get("where", KINDS)))
                for each in raw["rules"]
            ),
            tuple(Exempt(re.compile(each["path"]), re.compile(each["text"])) for each in raw["exempt"]),
            re.compile(raw["skip"]),
        )

    def findings(self, path: str, text: str) -> list[str]:
        """One line for each banned word in the file."""
        # Most files have no banned word at all: only the others are parsed.
        words = f"{text}\n{_apart(text)}"
        rules = [rule for rule in self.rules if rule.may_be_in(words)]
        if not rules:
            return []
        exempt = [each.text for each in self.exempt if each.path.search(path)]
        return [
            f"{path}:{piece.line + piece.text.count(chr(10), 0, match.start())}: "
            f"{match.group(0)!r} in a {piece.kind}: use {rule.use}"
            for piece in pieces(path, text)
            for rule in rules
            if piece.kind in rule.where
            for match in rule.pattern.finditer(piece.text)
            if not any(each.search(piece.text) for each in exempt)
        ]


def pieces(path: str, text: str) -> Iterator[Piece]:
    """The texts that people read in a file: of Python, of JavaScript, of YAML, or any other, such as markdown."""
    if path.endswith(".py"):
        yield from _strings(parsed(text))
        yield from _names(parsed(text))
        yield from _comments(text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if path.endswith(".js"):
            yield from _script(number, line)
        elif not path.endswith(".yaml"):
            yield Piece("page", number, line)
        elif comment := re.search(r"(?:^|\s)#.*", line):
            yield Piece("comment", number, comment.group(0))


def _script(number: int, line: str) -> Iterator[Piece]:
    """A comment at the end of a line of JavaScript, and its strings of more than one word."""
    code, slashes, comment = line.partition("// ")
    if slashes:
        yield Piece("comment", number, comment)
    for string in re.findall(r"\"([^\"]*)\"|`([^`]*)`", code):
        if " " in (words := "".join(string).strip()):
            yield Piece("message", number, re.sub(r"\$\{[^}]*\}", "", words))


def _strings(tree: ast.Module) -> Iterator[Piece]:
    """Docstrings, also of attributes, and messages: other strings of more than one word."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield Piece("docstring" if id(node) in docstrings else "message", node.lineno, node.value)


def _names(tree: ast.Module) -> Iterator[Piece]:
    """Names that the file gives, as words: of functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield Piece("name", node.lineno, _apart(name))
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield Piece("name", node.lineno, _apart(name))


def _apart(name: str) -> str:
    """Return the words of a name, or of all names in a text: those of ``told_by`` and ``ToldBy``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace("_", " "))


def _comments(source: str) -> Iterator[Piece]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Piece("comment", token.start[0], token.string)


def main() -> int:
    """Print the findings in all files of the repository; 1 if there are any."""
    table = Table.read()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *READ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    found = [
        line
        for name in sorted(set(listed))
        if not table.skip.search(name) and (ROOT / name).is_file()
        for line in table.findings(name, (ROOT / name).read_text())
    ]
    print("\n".join(found), end="\n" if found else "")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
