"""``python -m tests.corpus``: the scoreboard; status 1 when an item is wrong."""

import sys

from rich.console import Console

from tests.corpus.board import scores, show

sys.exit(bool(show(Console(), scores())))
