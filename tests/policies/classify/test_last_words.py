"""The line of a log that states why its rank died."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.classify import last_words, lived_on
from holdfast.policies.classify.boxed import START

GPU = "CUDA error: an illegal memory access was encountered"
DISK = "OSError: [Errno 28] No space left on device"
CUT = "ValueError: mmap length is greater than file size"
SERVICE = "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://tracker"
PEER = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2033"
STEP = "step 41/1000 | loss 2.31 | lr 3e-4"


def cause(*lines: str) -> str:
    found = last_words.cause("\n".join(lines))
    return found.pattern.cause if found else ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((DISK, GPU), "gpu"),
        ((GPU, DISK), "gpu"),
        ((SERVICE, DISK), "disk_space"),
        ((CUT, SERVICE), "data"),
        ((DISK, STEP, SERVICE), "service"),
        ((GPU, STEP), ""),
        ((PEER, SERVICE), "service"),
        ((PEER,), "peer"),
        ((f"{SERVICE}; retrying in 5 s", PEER), "peer"),
        ((DISK, "OSError: [Errno 5] Input/output error"), "filesystem"),
        ((), ""),
    ],
)
def test_the_nearest_and_gravest_counts(lines: tuple[str, ...], expected: str) -> None:
    """After the last progress, not handled; the graver, then the later one."""
    assert cause(*lines) == expected


def test_of_one_cause_the_first_line_counts() -> None:
    """The others follow from it."""
    found = last_words.cause(f"{GPU}\nCUDA error: CUBLAS_STATUS_EXECUTION_FAILED")
    assert found is not None
    assert found.pattern.name == "cuda_illegal_access"


@pytest.mark.parametrize(
    ("line", "handled"),
    [
        ("wandb: 502 encountered (Bad Gateway), retrying request", True),
        ("attempt 2/5 failed: 503 Service Unavailable", True),
        ("attempt 5/5 failed: 503 Service Unavailable", False),
        ("Request failed, will be retried in 3 s", True),
        ("could not read, falling back to the local copy", True),
        ("OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536", True),
        ("HTTPSConnectionPool(host='x', port=443): Max retries exceeded with url: /", False),
        ("AbortedError: All 10 retry attempts failed. The last failure: libcurl code 7", False),
        ("transport retry counter exceeded", False),
        ("gave up after 5 retries: connection refused", False),
        ("a retry was not possible: maximum number of attempts reached", False),
        ("503 Service Unavailable: not retrying", False),
        ("503 Service Unavailable, will not be retried", False),
        ("the context cannot be recovered", False),
        ("connection lost, recovered", True),
        ("WARNING: the disk is slow", True),
        ("INTERNAL: NCCL operation failed. Last NCCL warning(error) log entry (may be unrelated) ''", False),
        (GPU, False),
        (DISK, False),
    ],
)
def test_lines_that_are_tried_again(line: str, handled: bool) -> None:
    """Unless they say that it was the last time."""
    assert lived_on.handled(line) is handled


@pytest.mark.parametrize(
    "line",
    [
        STEP,
        "Epoch 0:  19%| | 1610/8573 [11:25:45<50:22:32, 26.05s/it, loss=0.279, step=1609, global_step=1609]",
        " iteration     3383/    8000 | elapsed time per iteration (ms): 7613.1 | lm loss: 7.3E-01",
        "[Epoch 10] loss: 286.861",
        "{'loss': 2.3104, 'grad_norm': 0.71, 'learning_rate': 3e-05, 'epoch': 0.01}",
        "[step=10/739328,epoch=0]",
        "[batch=23/3072000]:",
        " 600/1000 [================>.............] - ETA: 10s - loss: 2.3010 - accuracy: 0.4",
        "epoch: 20/50, iter: 20/812, mem: 9553Mb, iter_time: 0.527s, total_loss: 2.1, iou_loss: 1.0",
        '{"event": "step", "loss": 2.31, "step": 1300, "level": "info"}',
        "training_step=1300 train_loss=2.301 lr=1e-4 tok/s=70123",
        "[1300/50000] loss: 2.301 (avg 2.310) lr 1.0e-04 time 0.30",
        "Train: 3 [ 950/4071 ( 23%)]  Loss: 2.301 (2.31)  Time: 0.140s, 1828.33/s  LR: 1.000e-04",
        "step:1300/5000 train_loss:2.3010 train_time:1234ms step_avg:0.95ms",
    ],
)
def test_progress_is_recognised(line: str) -> None:
    """Of frameworks that print it each in their own way: what was before it, the rank lived on after."""
    assert lived_on.recent(f"{DISK}\n{line}\n{PEER}\n") == f"{line}\n{PEER}\n"


def test_a_crash_that_names_its_step_is_no_progress() -> None:
    """Without a loss or a pace beside it; files that are named after both are none."""
    log = f"{GPU}\nuncaught exception at step 120\nNo such file: '/ckpt/step_1300/12/loss.json'\n"
    assert lived_on.recent(log) == log


def test_a_bar_that_is_drawn_once_more_is_no_progress() -> None:
    """When its loop ends by an exception, which is printed already."""
    bar = "  1%|1         | 13/1000 [00:26<33:30,  2.04s/it]"
    assert lived_on.recent(f"{bar}\n{DISK}\n{bar}\n") == f"{bar}\n{DISK}\n{bar}\n"
    further = bar.replace("13/", "14/")
    assert lived_on.recent(f"{bar}\n{DISK}\n{further}\n") == f"{further}\n"


def test_colours_are_left_out() -> None:
    """They would stand between the words of a line."""
    assert cause("\x1b[1;31mOSError\x1b[0m: [Errno 28] No \x1b[1mspace\x1b[0m left on device") == "disk_space"
    found = last_words.from_log(f"{START}\n\x1b[1;35mMemoryError\x1b[0m: \x1b[35mx\x1b[0m\n")
    assert (found["error_type"], found["message"]) == ("MemoryError", "x")


IGNORED = f"""Exception ignored in: <function Loader.__del__ at 0x7f>
{START}
  File "loader.py", line 3, in __del__
AssertionError: can only test a child process
"""
RAISED = f"""{START}
  File "train.py", line 9, in <module>
{DISK}
"""


def test_an_ignored_exception_is_not_the_last_one() -> None:
    """Finalizers fail while the process ends of another."""
    found = last_words.from_log(RAISED + IGNORED + IGNORED)
    assert (found["error_type"], found["traceback"]) == ("OSError", RAISED)
    assert last_words.from_log(IGNORED) == {}
    assert last_words.from_log(IGNORED + RAISED)["error_type"] == "OSError"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Workers are gone. Please check the print statements above for the actual error message", True),
        ("The Inner error is reported as above.", True),
        ("Engine core initialization failed. See root cause above. Failed core proc(s): {}", True),
        ("relative error above 0.1", False),
        ("check that lr is above 0", False),
        ("loss above the limit, check that it is not above 1e-3", False),
        ("", False),
    ],
)
def test_what_points_above(message: str, *, expected: bool) -> None:
    """A number that is above another is no pointer."""
    assert last_words.points_above({"error_type": "RuntimeError", "message": message}) is expected


LINK = "During handling of the above exception, another exception occurred:"
MISTAKE = f"""{START}
  File "train.py", line 31, in main
AttributeError: close
"""


def test_what_an_exception_was_raised_from_is_behind_it() -> None:
    """From a log as well; the first of all counts, and a lost peer only where there is nothing else."""
    chain = f"{RAISED}\n{LINK}\n\n{MISTAKE}"
    lost = f"{START}\nRuntimeError: {PEER}\n\n{LINK}\n\n"
    found = last_words.from_log(f"step 1\n{chain}")
    assert (found["error_type"], found["traceback"]) == ("AttributeError", chain)
    for error, expected in (
        (found, "disk_full"),
        ({"error_type": "AttributeError", "traceback": MISTAKE}, ""),
        ({"error_type": "OSError", "traceback": RAISED}, ""),
        (found | {"traceback": lost + chain}, "disk_full"),
        (found | {"traceback": lost + MISTAKE}, "gloo_peer_lost"),
    ):
        behind = last_words.behind(error)
        assert (behind.pattern.name if behind else "") == expected


def test_what_a_loaders_worker_raised_is_behind_it() -> None:
    """The worker's own traceback is the message; of a log, later lines belong to others."""
    trace = f"RuntimeError: Caught OSError in DataLoader worker process 1.\nOriginal {RAISED}"
    error = {"error_type": "RuntimeError", "message": "Caught OSError in DataLoader", "traceback": trace}
    assert last_words.behind(error) is None
    behind = last_words.behind(error | {"at": 12.5})
    assert behind is not None
    assert behind.pattern.name == "disk_full"


def test_members_of_a_group_are_behind_it() -> None:
    """They stand after it."""
    trace = f"  | ExceptionGroup: errors (1 sub-exception)\n  +-+-------- 1 --------\n    | {DISK}\n"
    behind = last_words.behind({"error_type": "ExceptionGroup", "traceback": trace})
    assert behind is not None
    assert behind.pattern.name == "disk_full"


@given(st.text(max_size=2000))
def test_any_log_is_only_data(log: str) -> None:
    """No exception, whatever stands there."""
    last_words.cause(log)
    found = last_words.from_log(f"{log}\nTraceback (most recent call last):\n{log}")
    assert last_words.match_exception(found) is None or found
    assert last_words.behind(found) is None or found


@pytest.mark.parametrize("name", ["bdb.BdbQuit", "triton.runtime.errors.OutOfResources"])
def test_an_exception_with_a_name_of_its_own_is_read(name: str) -> None:
    """Not all are called errors; a line in capitals is none."""
    log = f'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\nINFO: x\n{name}: too much\n'
    found = last_words.from_log(log)
    assert (found["error_type"], found["message"]) == (name.rpartition(".")[2], "too much")


def test_the_reason_that_ray_gives_is_read() -> None:
    """Below the exception's own line, also of one that another was raised from."""
    died = (
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tpid: 6420\n"
    )
    log = f"Traceback (most recent call last):\n{died}The actor is dead because its node has died. Node Id: 677d\n"
    alone = last_words.match_exception(last_words.from_log(log))
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    behind = (
        f"{log}{link}Traceback (most recent call last):\nray.train.base_trainer.TrainingFailedError: failed\n"
    )
    for found in (alone, last_words.behind(last_words.from_log(behind))):
        assert found is not None
        assert (found.pattern.name, found.pattern.cascade) == ("ray_node_lost", True)


def test_why_a_module_of_transformers_is_not_imported_is_read() -> None:
    """Below the exception's own line, and below that of the import it failed in."""
    cause = "because of the following error (look up to see its traceback):\n"
    log = (
        f"Traceback (most recent call last):\nRuntimeError: Failed to import trl.trainer.gkd_trainer {cause}"
        f"Failed to import transformers.modeling_utils {cause}/opt/lib/flash_attn.so: undefined symbol: _ZN3c10\n"
    )
    for text in (log, log.replace(f"Failed to import transformers.modeling_utils {cause}", "")):
        found = last_words.match_exception(last_words.from_log(text))
        assert found is not None
        assert found.pattern.name == "library_mismatch"
