"""Group stacks by their text, per pipeline stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import dropwhile, islice

from holdfast.models.agent import StackDump
from holdfast.models.base import Frozen
from holdfast.models.job import Job
from holdfast.policies.config.diagnosis import AggregatePolicy
from holdfast.policies.diagnose.groups import stage_of

MAIN = "MainThread"
AGREEMENT = "holdfast/session/agreement"
"""The file in which a rank waits for all others to call ``Session.checkpoint`` too."""
# Only the innermost frames show whether a process waits: `backward` further out is just how it got there.
WAITING_DEPTH = 2
_DISPATCH = ("torch/_ops.py", "torch/_library/")
"""Between an operator that is called and what it runs: DTensor's collectives lie behind some such frames."""
_ENGINE = "_engine_run_backward"
_CALLS = {
    ".wait(": ("wait", "torch/distributed", 0),
    "_execution_engine.run_backward(": (_ENGINE, "torch/autograd", 0),
}
"""Of a line that calls what has no frame: the work of an asynchronous collective, and torch's engine of backward, which
Megatron and torch before 2.2 call by themselves."""
Signature = tuple[tuple[str, str, int], ...]
"""Function, file and line (0: left out) of each frame, innermost first as py-spy gives them."""


class StackGroup(Frozen):
    """Ranks of one pipeline stage with equal stacks."""

    stage: int
    ranks: tuple[int, ...]
    top: str
    """Innermost frame, ``function (file)``."""
    waiting: bool
    """It waits for other ranks."""
    barrier: bool = False
    """It waits in a barrier, which lets no rank pass before all have come."""
    dominant: bool
    """Most of its stage has this stack: healthy."""


def signature(dump: StackDump, with_lines: bool = False) -> Signature:
    """Return the key by which stacks are compared.

    Lines are left out by default: ranks inside one collective may be a line apart. Functions of extension modules have
    no frame: where the innermost one calls ``wait`` of an object, or backward's engine, that call is put before it.
    Waits of Python's own library have frames, and are innermost themselves.
    """
    frames = tuple((frame.function, frame.file, frame.line if with_lines else 0) for frame in dump.frames)
    source = dump.frames[0].source if frames and frames[0][0] != _ENGINE else ""
    return (*(frame for call, frame in _CALLS.items() if call in source), *frames)


def compared(stacks: Sequence[StackDump]) -> list[StackDump]:
    """Return the dumps of one machine without frames that no analysis looks at: of all machines they are gigabytes.

    Of a rank whose main thread was dumped only main threads count, its own and its children's.
    """
    known = {dump.rank for dump in stacks if dump.frames and not dump.child and dump.thread == MAIN}
    return [
        dump.model_copy(update={"frames": ()}) if dump.thread != MAIN and dump.rank in known else dump
        for dump in stacks
    ]


def stopped(stacks: Iterable[StackDump]) -> tuple[int, ...]:
    """Return the ranks that are stopped (state T), or have a child that is."""
    return tuple(sorted({d.rank for d in stacks if d.rank is not None and d.process_state[:1] == "T"}))


def traced(stacks: Iterable[StackDump]) -> frozenset[int]:
    """Return the ranks that a debugger or tracer holds (state t), a person's doing."""
    held = (d.rank for d in stacks if d.rank is not None and not d.child and d.process_state[:1] == "t")
    return frozenset(held)


def in_checkpoint(stacks: Iterable[StackDump]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks that wait for all others to agree on a save, and those that do something else."""
    mains = {
        dump.rank: any(AGREEMENT in frame.file for frame in dump.frames)
        for dump in stacks
        if dump.rank is not None and not dump.child and dump.frames and dump.thread == MAIN
    }
    inside = tuple(sorted(rank for rank, waits in mains.items() if waits))
    return inside, tuple(sorted(mains.keys() - inside))


def group_ranks(
    stacks: Sequence[StackDump], job: Job, policy: AggregatePolicy, with_lines: bool = False
) -> tuple[StackGroup, ...]:
    """Group the main threads of the rank processes."""
    mains: dict[int, Signature] = {}
    for dump in stacks:
        if dump.rank is None or dump.child or not dump.frames:
            continue
        # A dump without a thread of that name counts by its first thread.
        if dump.thread == MAIN or dump.rank not in mains:
            mains[dump.rank] = signature(dump, with_lines)
    return _grouped(mains, job, policy)


def group_children(stacks: Sequence[StackDump], job: Job, policy: AggregatePolicy) -> tuple[StackGroup, ...]:
    """Group ranks by all main threads of their child processes together.

    Idle workers of one rank take turns, so a rank counts by the set of its children's stacks.
    """
    children: dict[int, set[Signature]] = defaultdict(set)
    for dump in stacks:
        if dump.rank is not None and dump.child and dump.frames and dump.thread == MAIN:
            children[dump.rank].add(signature(dump))
    flat = {rank: tuple(frame for one in sorted(found) for frame in one) for rank, found in children.items()}
    return _grouped(flat, job, policy)


def _grouped(signatures: dict[int, Signature], job: Job, policy: AggregatePolicy) -> tuple[StackGroup, ...]:
    spec = job.spec
    by_text: dict[tuple[int, Signature], list[int]] = defaultdict(list)
    in_stage: dict[int, int] = defaultdict(int)
    for rank, text in sorted(signatures.items()):
        stage = stage_of(rank, spec.world_size, spec.parallelism)
        by_text[stage, text].append(rank)
        in_stage[stage] += 1
    found = [
        StackGroup(
            stage=stage,
            ranks=tuple(ranks),
            top=f"{text[0][0]} ({text[0][1]})",
            waiting=(waiting := _waits(text, policy)),
            barrier=waiting and any("barrier" in function for function, *_ in text[:WAITING_DEPTH]),
            dominant=len(ranks) > policy.dominant_share * in_stage[stage],
        )
        for (stage, text), ranks in by_text.items()
    ]
    return tuple(sorted(found, key=lambda group: (-len(group.ranks), group.stage, group.ranks)))


def _waits(text: Signature, policy: AggregatePolicy) -> bool:
    """Return whether an innermost frame waits. Since Python 3.11 a method has its class before its name."""
    called = dropwhile(lambda frame: any(part in frame[1] for part in _DISPATCH), text)
    return any(
        function.rpartition(".")[2] in policy.waiting_functions
        and any(part in file for part in policy.waiting_files)
        for function, file, _ in (*text[:WAITING_DEPTH], *islice(called, WAITING_DEPTH))
    )
