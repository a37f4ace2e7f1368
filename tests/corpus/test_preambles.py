"""Lines that a rank printed at its start, although nothing was wrong then, change no verdict on its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.corpus.items import Item, Kind, load
from tests.corpus.judge import changed

PREAMBLES: dict[str, str] = {
    each["id"]: each["text"]
    for each in yaml.load(
        (Path(__file__).parent / "around" / "preambles.yaml").read_text(), Loader=yaml.CSafeLoader
    )
}
_BEGINS = re.compile(
    r"^(?P<prefix>.*)Traceback \(most recent call last\):\n(?P<frame>(?P=prefix)  File .*\n)", re.MULTILINE
)


def _whole(item: Item) -> Item:
    """Return the item with the first frame of its last traceback: items keep the frames that matter."""
    begins = [*_BEGINS.finditer(item.text)]
    if not begins or "in <module>" in begins[-1]["frame"]:
        return item
    at, prefix = begins[-1].start("frame"), begins[-1]["prefix"]
    entry = f'{prefix}  File "/job/train.py", line 210, in <module>\n{prefix}    main()\n'
    return item.model_copy(update={"text": f"{item.text[:at]}{entry}{item.text[at:]}"})


_NOT_PLAYED = {
    # Their first frame is in a box, in JSON, out of order, or above the launcher's: a warning right before it is doubt.
    *("h-rich-disk", "h-rich-own", "n-rich-locals", "n-json-service", "n-docker-json"),
    *("h-megatron-between", "n-elastic-full"),
    # Known as wrong: lines of two ranks in turn, after a traceback of one that went on.
    "qe-dtensor-mixed",
}
EXITS = tuple(_whole(item) for item in load() if item.kind is Kind.EXIT and item.id not in _NOT_PLAYED)
PLAYED = 25
"""Exits for each preamble; all of them in the thorough run."""


@pytest.mark.parametrize("number", range(len(PREAMBLES)), ids=PREAMBLES)
def test_harmless_lines_at_the_start_change_no_verdict(number: int, tmp_path: Path) -> None:
    """Class, and whether it counts against the machine; each preamble with other exits."""
    preamble = [*PREAMBLES.values()][number]
    some = EXITS[number :: max(1, len(EXITS) // PLAYED)]
    assert changed(some, lambda text: preamble + text, tmp_path) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PREAMBLES)
def test_harmless_lines_before_any_exit_change_no_verdict(name: str, tmp_path: Path) -> None:
    """All exits of the corpus."""
    assert changed(EXITS, lambda text: PREAMBLES[name] + text, tmp_path) == {}
