"""Tracebacks in rich's boxes are read as the interpreter's."""

from __future__ import annotations

import io
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.traceback import Traceback

from holdfast.agent.ranks import exits
from holdfast.policies.classify import lived_on
from holdfast.policies.classify.boxed import BOXED, START, unboxed

SCRIPT = """def step(batch):
    note = "CUDA out of memory"
    return batch["labels"]


try:
    step({})
except KeyError as error:
    raise {kind}("it failed") from error
"""


def drawn(folder: Path, kind: str, width: int = 80, *, colours: bool = False, variables: bool = False) -> str:
    """Rich's output for a script whose path is longer than a box is wide."""
    path = folder / ("a_folder_with_a_long_name_" * 4) / "train.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT.replace("{kind}", kind))
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=colours, color_system="standard" if colours else None
    )
    try:
        runpy.run_path(str(path))
    except Exception:
        console.print(Traceback(width=width, show_locals=variables))
    return file.getvalue()


@pytest.mark.parametrize("width", [70, 80, 200])
@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("variables", [False, True])
def test_a_box_is_read_as_a_traceback(tmp_path: Path, width: int, *, colours: bool, variables: bool) -> None:
    """Whatever its width and colours; text of its source is no cause."""
    log = drawn(tmp_path, "TypeError", width, colours=colours, variables=variables)
    assert BOXED in lived_on.plain(log)
    found = exits.evidence(1, None, f"loading\n{log}", str(tmp_path))
    assert (found["error_type"], found["message"]) == ("TypeError", "it failed")
    assert str(found["user_frame"]).endswith("train.py:9 in <module>")
    assert "cause" not in found
    assert "KeyError: 'labels'" in found["traceback"]


def test_the_box_of_an_exception_that_is_known(tmp_path: Path) -> None:
    """Its name and its message count, behind a launcher's prefix and a bar too."""
    log = drawn(tmp_path, "MemoryError")
    for each in (
        log,
        "".join(f"[rank3]: {line}" for line in log.splitlines(keepends=True)),
        f"3/9 [0:01<{log}",
    ):
        assert exits.evidence(1, None, each, str(tmp_path))["cause"] == "host_memory"


def test_a_box_without_an_end_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """The process was killed while it printed."""
    log = drawn(tmp_path, "TypeError", 200).partition("╰")[0]
    assert unboxed(log).startswith(START)
    assert 'train.py", line 7, in <module>' in unboxed(log)


@given(st.text("╭─╮│╰╯ +|-x:1in\n❱", max_size=400))
def test_any_text_is_only_data(text: str) -> None:
    """Text outside of a box stays."""
    assert unboxed(text) == text
    box = f"╭──{BOXED}──╮\n"
    assert unboxed(f"a\n{box}{text}").startswith(f"a\n{START}\n")
