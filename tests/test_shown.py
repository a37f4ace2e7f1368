"""Escape sequences in others' text: shown as numbers to people, given to programs as they were."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import output
from holdfast.shown import PlainFormatter, plain
from holdfast.tasks.story import escape

ATTACKS = {
    "colour": "\x1b[31mred",
    "cursor": "fine\x1b[2K\x1b[1Gforged line",
    "title": "\x1b]0;owned\x07",
    "link (OSC 8)": "\x1b]8;;http://evil.example\x1b\\docs\x1b]8;;\x1b\\",
    "clipboard (OSC 52)": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "device control": "\x1bP$q\x1b\\",
    "eight bits": "\x9b31m \x9d0;owned\x9c \x90 \x9f",
    "back and over": "good\b\b\b\bevil\rover",
    "bidi": "user\u202etxt.exe\u2066 \u2069",
    "unseen": "a\u200bb\ufeffc\u00ad",
    "breaks": "a\u2028b\u2029c\x0bd\x0ce\x85f",
    "nothing": "\0\x7f",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_terminal_has_nothing_to_obey(attack: str) -> None:
    """And a reader sees that something was there."""
    shown = plain(ATTACKS[attack])
    assert shown.isprintable()
    assert "\\x" in shown or "\\u" in shown


@given(st.text())
def test_what_is_printable_stays(text: str) -> None:
    """All the rest has a number; lines stay where they are wanted."""
    shown = plain(text)
    assert all(sign.isprintable() or sign in "\n\t" for sign in shown)
    assert plain(text, lines=False).isprintable()
    if text.isprintable():
        assert shown == text


def test_people_write_in_many_scripts() -> None:
    """Umlauts, Greek, Chinese and emojis are text."""
    assert plain("Überlauf: λ=0,1 训练 🚀") == "Überlauf: λ=0,1 训练 🚀"


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_way_to_print_is_plain(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines, asides, tables with their titles and empty words, states."""
    text = ATTACKS[attack]
    output.say(f"{text} [bold]")
    output.say_aside(text)
    output.report(False, text)
    output.print_table(text, ("A",), [(text,), (output.state(text),)], "none")
    output.print_table("T", ("A",), [], text)
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert "[bold]" in printed
    assert all(sign.isprintable() or sign == "\n" for sign in printed)


@pytest.mark.parametrize("attack", ATTACKS)
def test_json_is_lossless_and_harmless(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A program gets every sign; a terminal that shows the document obeys none."""
    output.print_json({"text": ATTACKS[attack], ATTACKS[attack]: 1})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"text": ATTACKS[attack], ATTACKS[attack]: 1}
    assert all(sign.isprintable() or sign == "\n" for sign in printed)


@pytest.mark.parametrize("attack", ATTACKS)
def test_reports_and_logs_are_plain(attack: str) -> None:
    """Markdown that Prefect shows, and log files that people look at in terminals, tracebacks included."""
    assert escape(ATTACKS[attack]).isprintable()
    try:
        raise ValueError(ATTACKS[attack])
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, str(Path(__file__)), 1, "%s", (ATTACKS[attack],), info)
    line = PlainFormatter("%(message)s").format(record)
    assert "ValueError" in line
    assert all(sign.isprintable() or sign in "\n\t" for sign in line)
