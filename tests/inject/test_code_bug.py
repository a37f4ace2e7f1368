"""The bug that code-bug puts into a script."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast.errors import RefusedError
from holdfast.inject.code_bug import with_bug

LOOP = """
class Session:
    def step(self, step, loss): done.append(step)

done = []
watch = Session()

def main():
    for n in range(11, 100):
        if n:
            watch.step(n, loss=1.0)

main()
"""


def test_script_runs_some_steps_and_then_raises_type_error() -> None:
    """By itself, from the script's own line, in the loop."""
    names: dict[str, list[int]] = {}
    with pytest.raises(TypeError, match="has no len"):
        exec(compile(with_bug(LOOP, "train.py", after_steps=4), "train.py", "exec"), names)
    assert names["done"] == [11, 12, 13, 14]


def test_example_script_takes_the_bug() -> None:
    """The demo's own script, whatever else is called `step` in it."""
    path = Path(__file__).parents[2] / "examples" / "train_gpt.py"
    source = path.read_text()
    broken = with_bug(source, path.name)
    ast.parse(broken)
    assert len(broken.splitlines()) == len(source.splitlines()) + 4
    assert "len(step)" in broken


def test_script_without_a_step_is_refused() -> None:
    """Other things are called step too; the message names the script and what was looked for."""
    with pytest.raises(RefusedError, match=r"train\.py has no line `session\.step"):
        with_bug("def main():\n    optimizer.step(closure)\n", "train.py")
