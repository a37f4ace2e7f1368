"""The cause of a rank's death from the last lines of its log.

The cause nearest to the death, and the gravest, counts. Causes that the rank survived do not: lines before its last
progress, and lines that announce a retry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.policies.classify.boxed import BOXED, START, unboxed
from holdfast.policies.classify.lived_on import handled, plain, recent
from holdfast.policies.classify.patterns import RANK_LOG_FILE, Match, registry
from holdfast.policies.classify.wrapped import rejoined

_IGNORED = "Exception ignored "
"""Begins the line before a traceback that nothing came of: of a finalizer, mostly while the process ends."""
LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_MARGIN = re.compile(r"^ {0,40}\| ?", re.MULTILINE)
"""Stands before each line of an exception group."""
_PREFIX = re.compile(
    r"^(?:\[(?:rank|default)\d{1,6}\]:? ?|\[\d{1,6},\d{1,6}\]<std(?:err|out)>:? ?){1,4}", re.MULTILINE
)
"""Prefixes that launchers put before each line, one before the other: torchrun, torch's own hook, mpirun."""
_LAST_LINE = re.compile(
    r"^(?P<module>(?:\w+\.)*)(?P<type>\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure)\w*)"
    r"(?:: (?P<message>.*))?$",
    re.MULTILINE,
)
_OTHER_NAME = re.compile(
    r"^(?P<module>(?:\w+\.)*)(?P<type>[A-Z]\w{0,80}[a-z]\w{0,80})(?:: (?P<message>.*))?$", re.MULTILINE
)
"""Names an exception whose name has no such word (``OutOfResources``, ``BdbQuit``), where no other line does."""
_MORE = re.compile(
    r"\n(?:(?:nccl\w{1,30}(?:Error|Usage|Argument)|Last error|\[ERROR\]|E[A-Z]\d{4}):?.*(?:\n|$))+.*"
    r"|\n(?:\t\w{1,40}: .*\n){1,20}The \w{1,20} is dead because .*"
    rf"|\n{re.escape(START)} \(RANK \d[\s\S]{{1,12000}}"
    r"|(?:(?<=up to see its traceback\):)|(?<=up to see its traceback\):\r))"
    r"(?:\n.*look up to see its traceback\):\r?)*\n.+"
)
"""NCCL's, HCCL's and Ray's reason is in the lines after the exception's own, and so are the tracebacks that torch's
checkpoints quote of the ranks that failed, and why transformers' modules are not imported."""
_QUOTED = " (RANK "
_WARNED = '  File "'
"""Follows in the same line where NumPy warns of a module that was built for an older one."""
_LAUNCHER = re.compile(
    r"^(?:\w+\.)*(?:ChildFailedError\b|CalledProcessError: Command .{0,3}(?:\S{0,300}/)?"
    r"(?:python[\d.]{0,5}|torchrun|accelerate|deepspeed)\b.{0,4000} returned non-zero exit status)",
    re.MULTILINE,
)
"""Of a launcher, which only states that the process that it began ended with a status."""
_KILLED_CHILD = re.compile(r"^ *exitcode *: -\d", re.MULTILINE)
_ABOVE = re.compile(
    r"\b(?:(?:see|check|reported)\b.{0,60}|(?:errors?|statements?|messages?|output|logs?|traceback) )"
    r"\babove\b(?! ?(?:the |a |its )?(?:[\d<=>.-]*\d|threshold|tolerance|limit|maximum))"
    r"|: exit \d{1,3} \(read\)|Please use the NLTK Downloader|worker process has died\. Worker exit type: SYSTEM_ERROR",
    re.IGNORECASE,
)
"""Of an exception that only names where the error stands; of a download or a child's output that failed, for a reason
printed before.

Also of Ray's, of a process that ended by no exception: its log or Ray's monitor of the node states why."""
_FRAME = re.compile(r'^(?:  |> )File "([^"\n]{1,4096})", line (\d{1,9})(?:, in (.{1,200}))?$', re.MULTILINE)
_ENTRY = re.compile(
    r'\s*File "[^"\n]{1,4096}", line \d{1,9}, in (?:<module>|_run_module_as_main|_bootstrap(?:_inner)?)\n'
)
"""First frame of an exception that nothing caught."""
_SEMAPHORE = "_multiprocessing.SemLock("
"""A semaphore of processes is a file in shared memory, and its error names none."""
_AFTER = re.compile(
    r"\s*$|[ \t]|Set the environment variable HYDRA_FULL_ERROR=|.{0,200}process group has not been destroyed"
    r"|.{0,200}resource_tracker: There appear to be|.{0,60}\[launch\.py:\d{1,5}:\w{1,40}\] "
    r"|[\d.]{1,16} != [\d. *]{1,80}$"
    r"|.{0,200}\d%\|"
    r"|.{0,200}(?: failed \(exitcode: | Sending process \d{1,9} closing signal| exits with return code = )"
    r"|srun: error: .{1,200}: Exited with exit code|Set torch\._dynamo\.config|Set TORCH_LOGS=|You can suppress this"
    r"|Search for `(?:cuda|hip)\w{1,60}' in |(?:CUDA|HIP) kernel errors might be asynchronously reported"
    r"|For debugging consider passing (?:CUDA_LAUNCH|AMD_SERIALIZE)|Compile with `TORCH_USE_(?:CUDA|HIP)_DSA`"
    r"|GPU device may be out of range, do you have"
    r"|/\S{1,300}\.(?:cc|cpp):\d{1,6}: .{0,60}\b(?:disconnect|close|closing|shut(?:ting)? ?down|destroy|finali[sz]e)\b"
    r"|\d{4}-\d\d-\d\d [\d:.]{8,20}: [IWEF] external/\S{0,200}(?:distributed|coordination|preemption)"
    r"|wandb:(?:\s*$|  |\W{0,8}(?:View |Find logs at|Synced |Waiting for |Run (?:history|summary)|You can sync ))",
    re.IGNORECASE,
)
"""Begins a line that may follow the exception of which a program ends: of its message, or of its exit functions."""
_GIVEN_UP = "expert_timeout"
"""The pattern of kernels that wait for other ranks, print that none came, and trap."""
GRAVITY: Mapping[str, int] = {
    "gpu": 5,
    "crash": 4,
    "gpu_memory": 4,
    "host_memory": 4,
    "data_loader": 4,
    "data": 4,
    "checkpoint": 4,
    "code": 4,
    "numeric": 4,
    "framework": 4,
    "disk_space": 3,
    "filesystem": 3,
    "setup": 3,
    "network": 3,
    "nccl": 2,
    "remote_storage": 2,
    "service": 1,
}
"""Order of the causes where several are left. A lost peer counts only where no other cause is left."""


def unprefixed(log: str) -> str:
    """Return the log without colours, without what launchers put before each line, and without a console's breaks."""
    return rejoined(_PREFIX.sub("", plain(log)))


def without_boxes(log: str) -> str:
    """Return the log with rich's tracebacks as the interpreter prints them; the very log where it has none."""
    text = plain(log)
    return unboxed(_PREFIX.sub("", text)) if BOXED in text else log


def from_log(log: str) -> dict[str, str]:
    """Return error type, message and traceback of the last Python traceback in ``log``; empty without one.

    Tracebacks of exceptions that the interpreter ignored do not count. What the exception was raised from, or while
    handling, belongs to its traceback.
    """
    text, start, end = _ended_with(unprefixed(log))
    if start < 0:
        return {}
    rest = text[start + len(START) : end]
    last = _named(rest)
    more = _MORE.match(rest, last.end()) if last else None
    return {
        "error_type": last["type"] if last else "",
        "message": (last["message"] or "") + (more[0] if more else "") if last else "",
        "traceback": text[_first_of_chain(text, start) : end],
    }


def frames_at_end(log: str) -> list[tuple[str, int, str]]:
    """Return file, line and function of each frame of the traceback that the log ends with, the deepest last.

    Empty where the log goes on after it, or the line before it announces that the program continues: an exception that
    was only logged is not what the process ended with.
    """
    text, start, end = _ended_with(unprefixed(log))
    return frames(text[start:end]) if _is_last(text, start, end) else []


def after_last_raised(log: str) -> str:
    """Return the lines after the log's last traceback; empty where none follows that is not of the exception itself."""
    text, start, end = _ended_with(unprefixed(log))
    if start < 0 or _is_last(text, start, end) or (last := _named(text[start + len(START) : end])) is None:
        return ""
    return text[start + len(START) + last.end() : end]


def frames(text: str) -> list[tuple[str, int, str]]:
    """Return file, line and function of each frame of the last traceback in ``text``, the deepest last."""
    rest = text[_last_raised(text)[0] + len(START) :]
    found = _FRAME.findall(rest[: last.start()]) if (last := _named(rest)) else []
    return [(file, int(line), name or "<module>") for file, line, name in found]


def _named(rest: str) -> re.Match[str] | None:
    """Return the line that names the exception of a traceback, of the text from its first line on."""
    return _LAST_LINE.search(rest) or _OTHER_NAME.search(rest)


def _is_last(text: str, start: int, end: int) -> bool:
    """Return whether nothing follows the traceback, and it was not logged.

    It was where the line before it announces that the program goes on, unless it begins where the program does: such a
    line is then a library's warning, of before.
    """
    if start < 0:
        return False
    rest = text[start + len(START) : end]
    if handled(text[:start].rstrip().rpartition("\n")[2]) and not _ENTRY.match(rest):
        return False
    if (last := _named(rest)) is None:
        return False
    quoted = rest.find(f"\n{START}{_QUOTED}", last.end())
    ignored = [
        line
        for line in text[end:].splitlines()
        if not line.startswith((_IGNORED, START)) and not _LAST_LINE.match(line)
    ]
    further = (
        line for line in rest[last.end() : quoted if quoted >= 0 else None].splitlines() if line != last[0]
    )  # of several ranks in one log
    return all(_AFTER.match(line) for line in (*further, *ignored))


def _ended_with(text: str) -> tuple[str, int, int]:
    """Return the text, and where its last traceback begins and ends; up to its child's, where that is a launcher's."""
    start, end = _last_raised(text)
    if start < 0 or not _LAUNCHER.search(text, start, end) or _KILLED_CHILD.search(text, start, end):
        return text, start, end
    above = text[: text.rfind("\n", 0, _first_of_chain(text, start)) + 1]
    child, child_end = _last_raised(above)
    return (above, child, child_end) if _is_last(above, child, child_end) else (text, start, end)


def _last_raised(text: str) -> tuple[int, int]:
    """Return where the last traceback begins that was not ignored (-1: none was), and where an ignored one follows."""
    end = before = len(text)
    while (start := text.rfind(START, 0, before)) >= 0:
        line = text.rfind("\n", 0, max(0, start - 1)) + 1
        if text.startswith(_IGNORED, line):
            end = before = line
        elif text.startswith((_QUOTED, _WARNED), start + len(START)):
            before = start
        else:
            return start, end
    return -1, end


def _first_of_chain(text: str, start: int) -> int:
    while text[:start].rstrip().endswith(LINKS) and (earlier := text.rfind(START, 0, start)) >= 0:
        start = earlier
    return start


def within(line: str) -> bool:
    """Return whether a line may belong to a traceback: a frame, the exception, or its message's further lines."""
    return line.startswith(("  ", "\t")) or _LAST_LINE.match(line) is not None


def match_exception(error: Mapping[str, Any]) -> Match | None:
    """Match an exception against the log patterns, by the name in its traceback, with its module."""
    kind, message = str(error.get("error_type") or ""), str(error.get("message") or "")
    call = " (SemLock)" if _SEMAPHORE in str(error.get("traceback") or "")[-1000:] else ""
    return registry(RANK_LOG_FILE).match(f"{_qualified(kind, error)}: {message}{call}".replace("\n", " "))


def behind(error: Mapping[str, Any]) -> Match | None:
    """Match what an exception was raised from, or while handling, or the members of a group; the first of all counts.

    An error of the script in its own handler of a failed disk or of a lost peer is not what the rank died of. That of a
    data loader's worker has the worker's traceback as its message, which is cut before its last line.
    """
    kind = str(error.get("error_type") or "")
    text = _MARGIN.sub("", plain(str(error.get("traceback") or "")))
    lines = list(_LAST_LINE.finditer(text))
    own = [index for index, line in enumerate(lines) if line["type"] == kind]
    if own and error.get("at") is None and not kind.endswith("Group"):
        lines = lines[: own[-1]]  # of a log: what follows is not its own; the members of a group are
    messages = (f"{line[0]} {more[0] if (more := _MORE.match(text, line.end())) else ''}" for line in lines)
    found = registry(RANK_LOG_FILE).matches("\n".join(each.replace("\n", " ") for each in messages))
    return next((match for match in found if not match.pattern.cascade), found[0] if found else None)


def points_above(error: Mapping[str, Any]) -> bool:
    """Return whether an exception only states that the error stands above it, in the log: of a worker, of a driver."""
    message = str(error.get("message") or "") or str(error.get("traceback") or "")[-2000:]
    return _ABOVE.search(message[:2000]) is not None


def asserted(log: str) -> Match | None:
    """Return a kernel's failed assertion about numbers that are not finite: its exception leaves it out."""
    return _first(log, lambda each: each.pattern.cause == "numeric" and "Assertion `" in each.line)


def trapped(log: str) -> Match | None:
    """Return the line in which a kernel that waited for another rank gave up: it ends itself, as a failed launch."""
    return _first(log, lambda each: each.pattern.name == _GIVEN_UP)


def _first(log: str, wanted: Callable[[Match], bool]) -> Match | None:
    return next(filter(wanted, registry(RANK_LOG_FILE).matches(recent(log))), None)


def cause(log: str) -> Match | None:
    """Return the log line that best explains why its rank died; a lost peer only where no other cause is logged."""
    found = [match for match in registry(RANK_LOG_FILE).matches(recent(log)) if not handled(match.line)]
    own = [match for match in found if not match.pattern.cascade]
    if not own:
        return found[0] if found else None
    gravest = max(_gravity(match) for match in own)
    return _first_of_last([match for match in own if _gravity(match) == gravest])


def _first_of_last(found: Sequence[Match]) -> Match:
    """Return the first line of the last cause: the others follow from it."""
    first = found[-1]
    for match in reversed(found):
        if match.pattern.cause != first.pattern.cause:
            break
        first = match
    return first


def _gravity(match: Match) -> int:
    return GRAVITY.get(match.pattern.cause, 0)


def _qualified(kind: str, error: Mapping[str, Any]) -> str:
    if not kind:
        return kind
    lines = re.findall(
        rf"^((?:\w+\.)*{re.escape(kind)})(?=:|$)", str(error.get("traceback") or ""), re.MULTILINE
    )
    return str(lines[-1]) if lines else kind
