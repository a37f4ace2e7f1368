"""Tracebacks that a console broke at its width are read as whole ones."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast.agent.ranks import exits
from holdfast.policies.classify import last_words
from holdfast.policies.classify.wrapped import rejoined

PLAIN = """Traceback (most recent call last):
  File "/job/train.py", line 103, in main
    dcp.load(state, storage_reader=reader)
  File "/usr/lib/python3/dist-packages/torch/distributed/checkpoint/default_planner.py", line 235, in create_plan
    md = metadata.state_dict_metadata[fqn]
RuntimeError: the checkpoint holds no entry for state.optimizers.DecoupledAdamW.state.embed_tokens.weight
"""


def _printed(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, markup=False).print(PLAIN, end="")
    return out.getvalue()


@pytest.mark.parametrize("width", range(60, 121, 5))
def test_what_a_console_breaks_is_read_as_what_was_printed(width: int) -> None:
    assert last_words.from_log(_printed(width))["error_type"] == "RuntimeError"
    frames = last_words.frames_at_end(_printed(width))
    assert frames == last_words.frames_at_end(PLAIN)
    assert exits.evidence(1, None, _printed(width), "/job")["user_frame"] == "train.py:103 in main"


def test_a_frame_that_is_not_broken_leaves_the_log_as_it_is() -> None:
    assert rejoined(PLAIN + "a line that ends with a space \nand one more\n") == (
        PLAIN + "a line that ends with a space \nand one more\n"
    )
