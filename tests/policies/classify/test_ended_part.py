"""The part of a rank that ended by an exception while the rank lives on, by the interpreter's real output."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from holdfast.policies.classify.ended_part import begins, ended_part
from holdfast.policies.classify.patterns import RANK_LOG_FILE, registry

THREAD = """
import threading
def fetch():
    {body}
thread = threading.Thread(target=fetch)
thread.start()
thread.join()
print("the main thread goes on")
"""


def announced(log: str) -> bool:
    """Return whether the one who reads along takes notice."""
    return begins(log, registry(RANK_LOG_FILE).matches(log))


def written(code: str) -> str:
    """Return what a program writes to both streams."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    return done.stdout


@pytest.mark.parametrize(
    ("body", "error", "own"),
    [
        ("raise ValueError('bad record')", "ValueError: bad record", True),
        ("raise ValueError('bad') from KeyError('a')", "ValueError: bad", True),
        ("raise RuntimeError('one\\n\\ntwo')", "RuntimeError: one", True),
        ("raise ExceptionGroup('many', [ValueError('a')])", "ExceptionGroup: many (1 sub-exception)", True),
        ("raise MemoryError", "MemoryError", True),
        ("open('/nowhere/x')", "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'", False),
        ("raise OSError(5, 'Input/output error')", "OSError: [Errno 5] Input/output error", False),
        (
            "raise RuntimeError('CUDA error: uncorrectable ECC error encountered')",
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            False,
        ),
    ],
)
def test_a_thread_that_ended(body: str, error: str, own: bool) -> None:
    """With its name and the place; whether its machine may be the cause."""
    log = written(THREAD.format(body=body))
    found = ended_part(log)
    assert announced(log)
    assert found is not None
    assert (found.part, found.error, found.own) == ("thread Thread-1 (fetch)", error, own)
    assert found.place == "<string>:4"


def test_the_place_is_that_of_the_last_exception() -> None:
    """Not of the one that it was raised while handling."""
    body = "exec('def f(): raise KeyError(1)\\ntry: f()\\nexcept KeyError: raise ValueError(2)')"
    found = ended_part(written(THREAD.format(body=body)))
    assert found is not None
    assert (found.error, found.place) == ("ValueError: 2", "<string>:3")


def test_a_child_process_that_ended() -> None:
    """Of ``multiprocessing``."""
    found = ended_part(
        written("""
            import multiprocessing
            def read():
                raise RuntimeError("cannot decode")
            child = multiprocessing.get_context("fork").Process(target=read, name="reader 3")
            child.start()
            child.join()
        """)
    )
    assert found is not None
    assert (found.part, found.error) == ("child process reader 3", "RuntimeError: cannot decode")


def test_a_task_that_ended() -> None:
    """Of ``asyncio``, which names it in a line of its own."""
    found = ended_part(
        written("""
            import asyncio, gc
            async def fetch():
                raise ValueError("bad record")
            async def main():
                task = asyncio.create_task(fetch())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                del task
                gc.collect()
            asyncio.run(main())
        """)
    )
    assert found is not None
    assert (found.part, found.error) == ("task of asyncio", "ValueError: bad record")


def test_what_loguru_caught_in_a_thread() -> None:
    """As its documentation shows the line; of the main thread it is no part that ended."""
    line = (
        "2026-01-02 03:04:05.678 | ERROR | __main__:<module>:9 - An error has been caught in function 'run', "
    )
    line += "process 'MainProcess' (27193), thread '{}' (139720):"
    rest = (
        '\nTraceback (most recent call last):\n\n> File "data.py", line 5, in run\n\nValueError: bad record\n'
    )
    found = ended_part(line.format("Thread-7") + rest)
    assert found is not None
    assert (found.part, found.error) == ("thread Thread-7", "ValueError: bad record")
    assert ended_part(line.format("MainThread") + rest) is None


@pytest.mark.parametrize(
    "log",
    [
        "libgomp: Thread creation failed: Resource temporarily unavailable\n",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64: Resource temporarily unavailable\n",
    ],
)
def test_a_library_that_could_start_no_thread(log: str) -> None:
    """It reports no exception, and the rank may wait for that thread."""
    found = ended_part(f"step 3 loss 2.0\n{log}")
    assert announced(log)
    assert found is not None
    assert (found.part, found.own) == ("", True)


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('of the main thread')",
        "class A:\n    def __del__(self): raise ValueError('ignored')\nA()",
        "import logging\ntry: 1 / 0\nexcept ZeroDivisionError: logging.exception('a batch is skipped')",
        "print('Process 3: ready'); print('Exception in thread of thought'); print('Process 4:')",
    ],
)
def test_what_is_no_part_that_ended(code: str) -> None:
    """Exceptions of the main thread, ignored and handled ones."""
    assert ended_part(written(code)) is None


@pytest.mark.parametrize(
    "prefix", ["[rank3]: ", "3: ", "2026-01-02T03:04:05.678Z ", "(train pid=812, ip=10.0.0.3) "]
)
def test_what_stands_before_each_line_does_not_hide_it(prefix: str) -> None:
    """As torchrun, ``srun --label``, ``kubectl logs --timestamps`` and Ray write it."""
    log = written(THREAD.format(body="raise ValueError('bad record')"))
    log = "".join(f"{prefix}{line}" for line in log.splitlines(keepends=True))
    found = ended_part(log)
    assert announced(log)
    assert found is not None
    assert (found.part, found.error) == ("thread Thread-1 (fetch)", "ValueError: bad record")
