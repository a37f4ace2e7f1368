"""The lint of words finds what it bans, where it bans it, and leaves the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.words import Exempt, Rule, Table

TABLE = Table(
    (
        Rule(re.compile(r"\banew\b"), "again", frozenset({"docstring", "comment", "message", "page"})),
        Rule(re.compile(r"\A\s*What\b"), "a noun phrase", frozenset({"docstring"})),
    ),
    (Exempt(re.compile(r"^quoted\.py$"), re.compile("as it was")),),
    re.compile("^$"),
)
SOURCE = '''\
"""What it is."""

KEY = "anew"  # a name, not a sentence


def start() -> str:
    """Start it.

    It starts anew.
    """
    # Always anew.
    return f"starts anew at {KEY}"
'''


def test_a_banned_word_is_found_in_docstring_comment_and_message() -> None:
    """With its line; a string of one word is a name and may stay."""
    assert sorted(TABLE.findings("a.py", SOURCE)) == [
        "a.py:11: 'anew' in a comment: use again",
        "a.py:12: 'anew' in a message: use again",
        "a.py:1: 'What' in a docstring: use a noun phrase",
        "a.py:9: 'anew' in a docstring: use again",
    ]


def test_names_are_read_as_words() -> None:
    """Where the file gives them, whatever is before and behind the word; those that it uses are given elsewhere."""
    table = Table((Rule(re.compile(r"(?i)\btold\b"), "given", frozenset({"name"})),), (), re.compile("^$"))
    source = "class ToldTwice:\n    def as_told(self, told=1):\n        self._untold = _told = x.told\n"
    assert [each.partition(" in ")[0] for each in table.findings("a.py", source)] == [
        "a.py:1: 'Told'",
        "a.py:2: 'told'",
        "a.py:2: 'told'",
        "a.py:3: 'told'",
    ]


def test_of_a_script_comments_and_sentences_are_read() -> None:
    """Names are not: they are read with those of the code."""
    source = 'const anew = tell("anew", `${anew} of it`);  // Anew\nsay("starts anew");  // anew\n'
    assert sorted(TABLE.findings("a.js", source)) == [
        "a.js:2: 'anew' in a comment: use again",
        "a.js:2: 'anew' in a message: use again",
    ]


@pytest.mark.parametrize(
    ("path", "text"), [("a.md", "One.\nIt begins anew.\n"), ("a.yaml", "a: 1\nb: 2  # anew\n")]
)
def test_pages_and_comments_of_yaml_are_read(path: str, text: str) -> None:
    """Each by its line."""
    (found,) = TABLE.findings(path, text)
    assert found.startswith(f"{path}:2: 'anew'")


def test_an_exempt_text_may_keep_its_word() -> None:
    """In the named file only."""
    source = '"""Anew, as it was written: anew."""\n'
    assert not TABLE.findings("quoted.py", source)
    assert TABLE.findings("other.py", source)


def test_an_exemption_needs_a_reason(tmp_path: Path) -> None:
    """A list of exceptions without reasons only grows."""
    table = tmp_path / "words.yaml"
    table.write_text("skip: ^$\nrules: []\nexempt: [{path: a, text: b}]\n")
    with pytest.raises(ValueError, match="give a reason"):
        Table.read(table)


def test_every_rule_of_the_table_is_read() -> None:
    """The file that `make check` uses is well formed."""
    assert len(Table.read().rules) > 3
