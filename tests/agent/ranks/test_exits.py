from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.ranks import exits

TRACE = """step 4
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    x + None
TypeError: unsupported operand
"""


def test_a_signal_is_named() -> None:
    """A negative exit code is the signal's number."""
    found = exits.evidence(-9, None, "step 4\n")
    assert (found["exit_code"], found["signal"], found["cascade"]) == (-9, "SIGKILL", False)
    assert found["log_tail"] == "step 4\n"


def test_without_the_last_words_the_log_is_read() -> None:
    """The last traceback of the log names the error when the datagram was lost."""
    found = exits.evidence(1, None, TRACE)
    assert (found["error_type"], found["message"]) == ("TypeError", "unsupported operand")
    assert found["traceback"].startswith("Traceback")
    assert found["user_frame"] is None


def test_a_traceback_at_the_end_of_the_log_has_its_place(tmp_path: Path) -> None:
    """A script that prints its exception itself and leaves with status 1; not where the log goes on, nor of a kill."""
    code = str(tmp_path)
    assert exits.evidence(1, None, TRACE, code)["user_frame"] == "train.py:9 in <module>"
    assert exits.evidence(1, None, TRACE.replace("train.py", f"{code}/a/b.py"), code)["user_frame"] == (
        "a/b.py:9 in <module>"
    )
    for exit_code, log in ((1, TRACE + "loading the model\n"), (-9, TRACE), (3, TRACE)):
        assert not exits.evidence(exit_code, None, log, code).get("user_frame")


def test_a_traceback_that_is_longer_than_the_end_is_read_whole(tmp_path: Path) -> None:
    """Stacks of models are deep; behind a launcher's prefix too. Where the log went on between, it is no traceback."""
    frame = '  File "/lib/module.py", line 7, in call\n    return self.forward()\n           ~~~~^^^\n'
    deep = TRACE.replace("TypeError", f"{frame * 200}TypeError")
    for log in (deep, "".join(f"[rank3]: {line}" for line in deep.splitlines(keepends=True))):
        found = exits.evidence(1, None, log, str(tmp_path))
        assert (found["error_type"], found["user_frame"]) == ("TypeError", "train.py:9 in <module>")
    went_on = deep.replace(frame * 200, frame * 90 + "ready to train\n" + frame * 110)
    assert exits.evidence(1, None, went_on, str(tmp_path))["error_type"] == ""


def test_a_printed_error_of_a_restore_is_about_the_state(tmp_path: Path) -> None:
    """An error raised while the saved state was loaded is no error of the script, though the script printed it."""
    frame = '  File "/opt/holdfast/session/session.py", line 7, in restore'
    log = TRACE.replace("TypeError", f"{frame}\nTypeError")
    assert "unsupported operand" in exits.evidence(1, None, log, str(tmp_path))["unloadable"]


def test_an_exception_that_points_above_stands_on_the_log() -> None:
    """Of workers that printed their own; an exception with a known message counts by itself."""
    disk = "OSError: [Errno 5] Input/output error: '/data/x'\nstopping\n"
    error = {
        "error_type": "RuntimeError",
        "message": "Worker is gone. Check the print statements above",
        "at": 1.0,
    }
    assert exits.evidence(1, error, disk)["cause"] == "filesystem"
    assert "cause" not in exits.evidence(1, error, "")
    assert "cause" not in exits.evidence(1, error | {"message": "the value is above 7"}, disk)
    full = "No space left on device, see the log above"
    assert exits.evidence(1, error | {"message": full}, disk)["cause"] == "disk_space"


def test_last_words_win_over_the_log() -> None:
    """The rank's own report is exact."""
    error = {"error_type": "IndexError", "message": "7", "traceback": "t", "user_frame": "train.py:3 in f"}
    found = exits.evidence(1, error, TRACE)
    assert (found["error_type"], found["user_frame"]) == ("IndexError", "train.py:3 in f")


@pytest.mark.parametrize(
    "message",
    [
        "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2033",
        "Read error [127.0.0.1]:1: Connection reset by peer",
        "Timed out waiting 1800000ms for recv operation to complete",
        "NCCL error: remote process exited or there was a network error",
    ],
)
def test_a_lost_peer_is_a_cascade(message: str) -> None:
    """A rank that died of another's death is marked as a victim."""
    assert exits.evidence(1, {"error_type": "RuntimeError", "message": message}, "")["cascade"]


def test_an_abort_is_judged_by_its_log() -> None:
    """The NCCL watchdog aborts the process: only the log has the reason."""
    log = "E Watchdog caught collective operation timeout: WorkNCCL\n"
    assert exits.evidence(-6, None, log)["cascade"]
    assert not exits.evidence(-11, None, log)["cascade"]


def test_user_errors_are_no_cascade() -> None:
    """A TypeError in the script has its cause here."""
    assert not exits.evidence(1, None, TRACE)["cascade"]


def test_evidence_is_bounded() -> None:
    """A huge log does not travel whole."""
    found = exits.evidence(1, {"traceback": "x" * 99999, "message": "y" * 99999}, "z" * 99999)
    assert len(found["traceback"]) == 4000
    assert len(found["log_tail"]) == 2000
    assert len(found["message"]) == 1000


def test_the_pattern_and_the_cause_are_named() -> None:
    """From the registry of log patterns."""
    found = exits.evidence(
        1,
        {
            "error_type": "AcceleratorError",
            "message": "CUDA error: an illegal memory access\nwas",
            "at": 12.5,
        },
        "",
    )
    assert (found["pattern"], found["cause"], found["failed_at"]) == ("cuda_error", "gpu", 12.5)
    full = {"error_type": "OSError", "message": "[Errno 28] No space left on device"}
    assert exits.evidence(1, full, "")["cause"] == "disk_space"
    assert "cause" not in exits.evidence(1, None, TRACE)


def test_in_a_log_the_cause_outweighs_the_lost_peer() -> None:
    """The rank aborted: first its own CUDA error, then the watchdog."""
    log = (
        "CUDA error: an illegal memory access was encountered\nWatchdog caught collective operation timeout\n"
    )
    found = exits.evidence(-6, None, log)
    assert (found["cascade"], found["pattern"]) == (False, "cuda_illegal_access")


def test_a_kill_is_no_echo_whatever_the_log_says() -> None:
    """SIGKILL comes from outside."""
    assert not exits.evidence(-9, None, "Connection closed by peer\n")["cascade"]


def test_an_error_that_our_own_code_raises_is_not_the_jobs() -> None:
    """The script called, but the last frame is ours: the cause is named, so that no code is rolled back for it."""
    last = f'  File "{Path(exits.__file__).parents[2]}/session/saver.py", line 7, in save\n'
    trace = f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n{last}KeyError: 3'
    error = {
        "error_type": "KeyError",
        "message": "3",
        "traceback": trace,
        "user_frame": "train.py:9 in <module>",
    }
    assert exits.evidence(1, error, "")["cause"] == "framework"
    assert "cause" not in exits.evidence(1, {**error, "traceback": trace.replace(last, "")}, "")


def test_what_was_tried_again_is_not_what_it_died_of() -> None:
    """Old warnings of a tracker, steps after them, then the GPU."""
    log = (
        "wandb: 502 encountered (Bad Gateway), retrying request\n"
        "Error: [Errno 28] No space left on device\n"
        "step 12 loss 2.1 lr 0.1\n"
        "CUDA error: uncorrectable ECC error encountered\n"
    )
    found = exits.evidence(-6, None, log)
    assert (found["pattern"], found["cause"]) == ("cuda_ecc", "gpu")
    assert exits.evidence(-6, None, "\n".join(log.splitlines()[:3])).get("cause") is None


def test_a_logged_traceback_is_not_the_end_of_a_rank_that_was_killed() -> None:
    """It lived on: the traceback of a handled error does not explain SIGKILL."""
    log = f"{TRACE}RuntimeError: Connection closed by peer [10.0.0.1]:1\n"
    found = exits.evidence(-9, None, log)
    assert not found["cascade"]


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "[default3]:"])
def test_launchers_put_the_rank_before_each_line(prefix: str) -> None:
    """The traceback is read all the same."""
    log = "".join(f"{prefix}{line}\n" for line in TRACE.splitlines())
    assert exits.evidence(1, None, log)["error_type"] == "TypeError"


def test_a_rank_that_reported_a_lost_peer_and_was_killed_afterwards_is_cascading() -> None:
    """It did not end by itself: the agent ended it."""
    error = {
        "at": 12.5,
        "error_type": "RuntimeError",
        "message": "Connection closed by peer [127.0.0.1]:2033",
    }
    assert exits.evidence(-9, error, "")["cascade"]


def test_a_rank_that_ends_with_a_status_alone_is_judged_by_its_log() -> None:
    """It raised nothing: what it wrote last is all that is known. Handled lines and older ones still do not count."""
    log = "[Errno 28] No space left on device, retrying\nstep 9 loss 1.0 lr 1\nclose() failed: Stale file handle\n"
    found = exits.evidence(1, None, log)
    assert (found["pattern"], found["cause"], found["cascade"]) == ("mount_lost", "filesystem", False)
    assert exits.evidence(1, None, "EI0006: Getting socket times out. Reason: Remote Rank\n")["cascade"]
    assert "pattern" not in exits.evidence(1, None, "step 9 loss 1.0 lr 1\nbye\n")


def test_an_exception_is_what_it_says_whatever_the_log_has() -> None:
    """As before: a line of a peer beside an error of the rank's own is no echo."""
    found = exits.evidence(
        1, {"error_type": "KeyError", "message": "'x'"}, "Connection closed by peer [::1]:1\n"
    )
    assert not found["cascade"]
    assert "pattern" not in found


def test_a_mistake_while_a_failed_disk_is_handled_is_not_why_the_rank_ended() -> None:
    """It ended because of the error it was handling. Its own report comes first."""
    link = "During handling of the above exception, another exception occurred:"
    disk = "Traceback (most recent call last):\nOSError: [Errno 5] Input/output error"
    error = {
        "at": 12.5,
        "error_type": "KeyError",
        "message": "'x'",
        "user_frame": "train.py:9 in main",
        "traceback": f"{disk}\n\n{link}\n\nTraceback (most recent call last):\nKeyError: 'x'\n",
    }
    assert exits.evidence(1, error, "")["cause"] == "filesystem"
    assert exits.evidence(1, error | {"message": "CUDA error: unknown error"}, "")["cause"] == "gpu"
    assert exits.evidence(-9, error, "")["cause"] == "filesystem"


def test_stacks_that_are_dumped_hide_no_cause() -> None:
    """An abort with faulthandler: the watchdog's line is followed by the stacks of a hundred threads."""
    watchdog = "E Watchdog caught collective operation timeout: WorkNCCL\nframe #0: c10::Error::Error + 0x98 (0x7f)\n"
    thread = 'Thread 0x00007f6e1e7fc640 (most recent call first):\n  File "/usr/lib/threading.py", line 324 in wait\n'
    dump = "Fatal Python error: Aborted\n\n" + f"{thread}  <no Python frame>\n\n" * 100
    found = exits.evidence(-6, None, watchdog + dump)
    assert (found["cascade"], found["pattern"]) == (True, "nccl_watchdog_timeout")
    assert found["log_tail"] == dump[-2000:]
    kept = exits.without_dumps(f"{TRACE}{thread}")
    assert kept == TRACE


def test_a_state_that_torch_could_not_write_is_a_matter_of_space() -> None:
    """A full disk or a quota, in most reports: if the next machine's is full as well, the job fills them."""
    message = "[enforce fail at inline_container.cc:424] . unexpected pos 320 vs 214"
    assert exits.evidence(1, None, f"RuntimeError: {message}\n")["cause"] == "disk_space"


LAUNCHERS = {
    "accelerate": "subprocess.CalledProcessError: Command '['/opt/bin/python', 'a.py']' "
    "returned non-zero exit status 1.",
    "torchrun": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\na.py FAILED\n"
    "Root Cause (first observed failure):\n[0]:\n  exitcode  : 1 (pid: 4712)\n",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_has_the_word_of_its_child(launcher: str, tmp_path: Path) -> None:
    """It only states that the child ended; not where a signal ended it, or where the child's log went on."""
    child = f"Traceback (most recent call last):\n  File \"{tmp_path}/a.py\", line 3, in f\nKeyError: 'x'\n"
    between = (
        "E0304 10:11:13.1 4711 torch/distributed/elastic/api.py:874] failed (exitcode: 1) local_rank: 0\n"
    )
    last = f'Traceback (most recent call last):\n  File "/opt/bin/run", line 8, in <module>\n{LAUNCHERS[launcher]}\n'
    found = exits.evidence(1, None, child + between + last, str(tmp_path))
    assert (found["error_type"], found["user_frame"]) == ("KeyError", "a.py:3 in f")
    for other in (
        f"{child}step 13 was skipped\n{last}",
        child + last.replace("exitcode  : 1", "exitcode  : -9"),
    ):
        if other != child + last:
            assert exits.evidence(1, None, other, str(tmp_path))["user_frame"] is None


def test_a_frame_that_loguru_marks_is_one(tmp_path: Path) -> None:
    """With the values below it."""
    frame = f'> File "{tmp_path}/a.py", line 3, in f\n    b["x"]\n    └ {{}}\n'
    log = f"Traceback (most recent call last):\n\n{frame}\nKeyError: 'x'\n"
    assert exits.evidence(1, None, log, str(tmp_path))["user_frame"] == "a.py:3 in f"


def test_a_message_that_is_longer_than_the_end_hides_no_exception() -> None:
    """Of a state that does not fit a model, a line for each weight."""
    weights = "".join(f"\tsize mismatch for layers.{each}.weight: copying a param\n" for each in range(400))
    raised = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nRuntimeError: Error(s) in loading:\n'
    log = raised + weights
    assert exits.evidence(1, None, log)["error_type"] == "RuntimeError"


def test_of_ranks_whose_tracebacks_are_mixed_the_one_with_a_cause_counts(tmp_path: Path) -> None:
    """A launcher's processes write into one log at once; the others only lost it."""
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [127.0.1.1]:4: Connection reset by peer"
    theirs = TRACE.replace("TypeError: unsupported operand", lost).splitlines()[1:]
    lines = zip(TRACE.splitlines()[1:], theirs, strict=True)
    log = "".join(f"[rank3]: {own}\n[rank0]: {other}\n" for own, other in lines)
    found = exits.evidence(1, None, log, str(tmp_path))
    assert (found["error_type"], found["user_frame"], found["cascade"]) == (
        "TypeError",
        "train.py:9 in <module>",
        False,
    )


def test_what_a_library_says_of_its_own_end_hides_no_traceback(tmp_path: Path) -> None:
    """Written while the process ends; another line of C++ may be what it ended of."""
    noise = (
        "/arrow/cpp/src/arrow/status.cc:137: Failed to disconnect hdfs client: IOError: [errno 9] Bad file\n"
    )
    assert exits.evidence(1, None, TRACE + noise, str(tmp_path))["user_frame"] == "train.py:9 in <module>"
    other = "/src/pool.cc:31: worker 3 is out of ring space\n"
    assert exits.evidence(1, None, TRACE + other, str(tmp_path)).get("user_frame") is None


def test_of_a_process_that_ray_lost_the_log_says_why() -> None:
    """Its exception names no reason; where the log has none either, it is not known."""
    died = (
        "Traceback (most recent call last):\nray.exceptions.ActorDiedError: The actor died.\n\tpid: 64\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: x\n"
    )
    killed = "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed\n"
    assert exits.evidence(1, None, killed + died)["cause"] == "host_memory"
    assert "cause" not in exits.evidence(1, None, died)


def test_a_kernel_that_gave_up_waiting_is_a_cascading_failure() -> None:
    """It traps, which CUDA reports as a failed launch, of an abort and of an exception; one alone is the GPU's."""
    gave_up = (
        "DeepEP dispatch NVL receiver timeout, channel: 6, RDMA: 0, nvl: 0, src NVL: 5, head: 3, tail: 3\n"
    )
    failed = "CUDA error: unspecified launch failure"
    words = {"error_type": "AcceleratorError", "message": failed, "at": 1.0}
    for exit_code, error in ((-6, None), (1, words)):
        log = f"{failed}\n" if error is None else ""
        assert exits.evidence(exit_code, error, gave_up + log)["cascade"]
        assert exits.evidence(exit_code, error, log)["cause"] == "gpu"


def test_what_a_failed_checkpoint_quotes_of_its_ranks_belongs_to_it() -> None:
    """Torch puts each rank's traceback into the message: an assertion there is no mistake of the script."""
    head = "Traceback (most recent call last):"
    log = (
        f'{head}\n  File "/job/train.py", line 30, in resume\n    dcp.load(state)\n'
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1])\n"
    )
    rank = f'{head} (RANK {{}})\n  File "/opt/torch/state_dict_loader.py", line 250, in local_step\n{{}}\n'
    asserted = rank.format(0, "AssertionError") + rank.format(1, "AssertionError")
    found = exits.evidence(1, None, log + asserted, "/job")
    assert (found["error_type"], found["user_frame"]) == ("CheckpointException", "train.py:30 in resume")
    assert (found["cause"], found["cascade"]) == ("checkpoint", False)
    full = log + rank.format(1, "OSError: [Errno 28] No space left on device")
    assert exits.evidence(1, None, full, "/job")["cause"] == "disk_space"
