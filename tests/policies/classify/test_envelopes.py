"""Text around the lines of a log; that it changes no verdict: ``tests/corpus/test_envelopes.py``."""

from __future__ import annotations

import contextlib
import json
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.classify import last_words
from holdfast.policies.classify.envelopes import unwrapped

RAISED = "Traceback (most recent call last):\n  File \"/job/a.py\", line 3, in f\n    g()\nKeyError: 'x'\n"


def before(prefix: str, text: str = RAISED) -> str:
    return "".join(f"{prefix}{line}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    "prefix",
    [
        "3: ",
        "[default0]:",
        "[1,7]<stderr>:",
        "[pod/w-3/pytorch] 2025-03-04T10:11:13.223457001Z ",
        "2025/03/04 10:11:13 ",
        "(WorkerDict pid=14390, ip=10.0.0.3) ",
        "ERROR 04-15 00:31:11 worker_base.py:574] ",
        "node-3  | ",
    ],
)
def test_a_prefix_of_each_line_is_learned(prefix: str) -> None:
    """From a frame; lines whose numbers differ have it too, and empty ones may lack its last space."""
    other = prefix.replace("3", "4")
    assert unwrapped(before(prefix) + before(other)) == RAISED * 2
    assert (
        unwrapped(f"step 1 loss 2\n{before(prefix)}{prefix.rstrip()}\nend\n")
        == f"step 1 loss 2\n{RAISED}\nend\n"
    )


def test_prefixes_of_several_hosts_are_learned() -> None:
    """Each of its own frames."""
    assert unwrapped(before("[alpha] ") + before("[beta] ")) == RAISED * 2


def test_what_is_logged_as_a_warning_stays_one() -> None:
    """Its lines say that the program goes on; without the prefix they would not."""
    log = before("WARNING 04-15 00:31:11 cache.py:9] ")
    assert unwrapped(log) == log


NUMPY = (
    "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.2 as it may crash.\n\n"
    'Traceback (most recent call last):  File "/job/a.py", line 1, in <module>\n    import torch\n'
    '  File "/opt/torch/__init__.py", line 1477, in <module>\n    from .functional import *\n'
    "/opt/torch/nn/modules/transformer.py:20: UserWarning: Failed to initialize NumPy: _ARRAY_API not found\n"
)


@pytest.mark.parametrize("prefix", ["", "[default0]:"])
def test_a_frame_in_the_line_that_begins_its_traceback_is_no_prefix(prefix: str) -> None:
    """NumPy warns so of a module built for an older one: every later traceback lost its first line."""
    log = before(prefix, NUMPY) + before(prefix)
    assert unwrapped(log) == NUMPY + RAISED
    assert last_words.from_log(unwrapped(log))["error_type"] == "KeyError"


@pytest.mark.parametrize(
    "log",
    [
        RAISED,
        "",
        "step 1 loss 2\n",
        '  + Exception Group Traceback (most recent call last):\n  |   File "a", line 3\n',
    ],
)
def test_a_log_with_nothing_around_it_is_left(log: str) -> None:
    """The margin of an exception group belongs to the traceback."""
    assert unwrapped(log) is log


def test_a_group_with_one_member_is_that_member() -> None:
    """As the interpreter draws it, also within another group; of several members none is preferred."""

    def raised(error: Exception) -> Exception:
        with contextlib.suppress(Exception):
            raise error
        return error

    def drawn(error: Exception) -> str:
        return "".join(traceback.format_exception(raised(error)))

    one = ExceptionGroup("unhandled errors in a TaskGroup", [raised(KeyError("x"))])
    for group in (one, ExceptionGroup("outer", [raised(one)])):
        assert last_words.from_log(unwrapped(drawn(group)))["error_type"] == "KeyError"
    several = drawn(ExceptionGroup("outer", [raised(KeyError("x")), raised(TimeoutError())]))
    assert unwrapped(several) == several


@pytest.mark.parametrize("name", ["exc_info", "exception", "message", "stack_trace"])
def test_a_traceback_in_a_line_of_json_is_read(name: str) -> None:
    """Whatever the logger calls it, and also within another object."""
    assert unwrapped(f"{json.dumps({'level': 'error', name: RAISED})}\n") == RAISED
    assert unwrapped(f"{json.dumps({'level': 'error', 'error': {name: RAISED}})}\n") == RAISED


@pytest.mark.parametrize("level", ["warning", "INFO"])
def test_a_warning_in_json_is_no_end(level: str) -> None:
    """As above."""
    log = f"{json.dumps({'severity': level, 'exc_info': RAISED})}\n"
    assert unwrapped(log) == log


def test_a_line_of_json_that_was_cut_is_read_as_far_as_it_goes() -> None:
    """Collectors cut at 16 KiB; the object does not end then."""
    log = json.dumps({"exc_info": RAISED, "extra": "y" * 20_000})[: 16 << 10]
    assert 'File "/job/a.py", line 3, in f\n' in unwrapped(log)


def test_lines_that_a_runtime_keeps_are_put_together() -> None:
    """Docker's objects, and the parts of CRI."""
    docker = "".join(
        f"{json.dumps({'log': line, 'stream': 'stderr', 'time': 'x'})}\n"
        for line in RAISED.splitlines(keepends=True)
    )
    assert unwrapped(docker) == RAISED
    at = "2025-03-04T10:11:13.123456789Z stderr"
    first, second, *rest = RAISED.splitlines()
    parts = [f"{at} F {first}\n", f"{at} P {second[:20]}\n", f"{at} F {second[20:]}\n"]
    assert unwrapped("".join([*parts, *(f"{at} F {line}\n" for line in rest)])) == RAISED


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_is_only_data(one: str, other: str) -> None:
    """No text of a log is an expression, and nothing is made up."""
    log = f"{one}{RAISED}{before(other, RAISED)}"
    assert len(unwrapped(log)) <= len(log) + 1
