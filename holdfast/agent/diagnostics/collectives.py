"""The work of a stop-time check's processes: real collectives on a known pattern, every byte compared.

Runs in processes forked from the machine's fork server, which has torch loaded; the agent, which only names
these functions, has not, so torch is imported inside them. Nothing else heavy is imported: a recovery starts many
of these processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent.diagnostics import meeting

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

CHECKED_BYTES = 1 << 20
"""Of which every byte is compared."""
MOST_BYTES = 64 << 20
"""Of a timed round: payloads that reach bandwidth ..."""
ROUND_S = 0.01
"""... in rounds of about this long: slow links get smaller ones."""
ROUNDS = 3
PATIENCE_S = 1.0
"""A link on which the compared bytes alone take so long is not measured again."""
TURNS_SHARE = 0.6
"""Of a check's time that the GPUs of a pair may take, one after the other."""
STAY_S = 1.0
"""How long a process waits for another check before it ends."""
_POLL_S = 0.005
_NO_FAULT = (
    "is too old",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "Cannot re-initialize CUDA in forked subprocess",
)
"""Torch's reasons for not using GPUs that are no fault of theirs: the job's image, what it may see, or a module that
the site has the fork server load (setting ``preload``) and that used CUDA there."""


@dataclass(frozen=True)
class CheckPart:
    """One process's share of a check, and where it leaves its outcome."""

    rank: int
    size: int
    folder: str
    """For the outcome, and for the processes of one machine to meet in."""
    timeout_s: float
    host: str = ""
    port: int = 0
    """The store where two machines meet; port 0: all processes are on this machine."""
    prefix: str = ""
    measure: bool = False
    """Whether collectives are timed as well, which takes some rounds more."""
    disk: str = ""
    """A folder on the disk that is tested; empty: :attr:`folder`."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables by which the libraries choose their way over the network, as the job's ranks have them."""
    gpus: int = 1
    """Of a pair: how many of this machine's GPUs take part, one after the other; 0: all."""
    fresh: bool = True
    """Whether the process was started for this check: all its time is the check's."""
    stay: str = ""
    """File in which the order for another check may come (:mod:`holdfast.agent.diagnostics.warm_checks`); empty: end
    at once."""

    @property
    def outcome_path(self) -> Path:
        """File that this process writes its :class:`CollectiveOutcome` to."""
        return Path(self.folder) / f"{self.rank}.json"


@dataclass(frozen=True)
class CollectiveOutcome:
    """The findings of one process."""

    wrong_bytes: dict[int, int] = field(default_factory=dict)
    """Damaged bytes by the rank that they came from."""
    backend: str = ""
    error: str = ""
    wrong: str = ""
    """The error in the computed result; empty: none."""
    value: float | None = None
    """The measured value, to be compared with others'."""
    unit: str = ""
    """Of the value."""
    repeats: int = 0
    """Measurements that the value is the best of."""
    host: bool = False
    """The host's own processors made the value, so that their other load affects it."""
    digest: str = ""
    """Of all that was computed, to be compared with others'."""
    together: str = ""
    """Like ``digest``, of what several processes computed as one job; or why they did not."""
    kind: str = ""
    """Hardware and library that value and digest are of."""
    cpu_s: float = 0.0
    """Processor time that the check used in this process."""
    busy: float = 0.0
    """Share of the tested device's work that was others' meanwhile."""
    environment: str = ""
    """Digest of the variables that the libraries were given; empty: none."""
    gpu: int = 0
    """Of several that took part in turn: the one with damaged bytes, else the slowest."""
    turns: int = 1
    """How many GPUs took part, one after the other ..."""
    of_turns: int = 1
    """... of how many: there may have been no time for all."""
    untested: str = ""
    """Why nothing could be tested; empty: it was."""

    def write(self, path: Path) -> None:
        """Write it to ``path``, whole or not at all."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        os.replace(new, path)

    @staticmethod
    def read(path: Path) -> CollectiveOutcome:
        """Read the outcome that a process left.

        Raises:
            OSError, ValueError: there is none, or it is not whole.
        """
        told = json.loads(path.read_text())
        wrong = {int(rank): count for rank, count in told.pop("wrong_bytes").items()}
        return CollectiveOutcome(wrong_bytes=wrong, **told)


def all_to_all(part: CheckPart) -> None:
    """Send a different pattern from every process to every other."""
    leave_outcome(part, lambda: in_group(part, _all_to_all))


def all_gather(part: CheckPart) -> None:
    """Send the pattern of every process to all others; two machines do it with each of their GPUs in turn."""
    leave_outcome(part, lambda: _in_turn(part) if part.port else in_group(part, _all_gather))


def leave_outcome(part: CheckPart, find: Callable[[], CollectiveOutcome]) -> None:
    """Write what ``find`` finds, leave the group if it joined one, and wait a moment for another check."""
    # The agent stops tracking this process once the outcome is there: the kernel ends it for certain.
    signal.alarm(math.ceil(part.timeout_s) + 1)
    started = 0.0 if part.fresh else time.process_time()
    try:
        outcome = find()
    except Exception as error:  # whatever the library raises is the finding
        outcome = CollectiveOutcome(error=f"{type(error).__name__}: {error}"[:500])
    replace(outcome, cpu_s=time.process_time() - started).write(part.outcome_path)
    leave_group()
    if part.stay:
        stay(Path(part.stay))


def leave_group() -> None:
    """Leave the group of the check, if there is one.

    After the outcome is written: leaving takes longer than the exchange, and the peer may still be reading.
    """
    import torch.distributed as dist  # noqa: PLC0415

    if dist.is_initialized():
        dist.destroy_process_group()


def stay(order: Path) -> None:
    """Run one more check, if the order for it comes in time."""
    deadline, pause = time.monotonic() + STAY_S, _POLL_S
    claimed = order.with_suffix(".taken")
    while time.monotonic() < deadline:
        try:
            order.rename(claimed)
        except FileNotFoundError:
            time.sleep(pause)
            # The next tier comes soon or not at all; ranks that start meanwhile should have the cores.
            pause = min(1.1 * pause, 0.1)
            continue
        told = json.loads(claimed.read_text())
        claimed.unlink()
        from holdfast.agent.diagnostics import (  # noqa: PLC0415  (they build on this module)
            alignment,
            computing,
            disk_bandwidth,
            host_copies,
        )

        checks = (
            all_to_all,
            all_gather,
            computing.matmul,
            host_copies.pcie,
            disk_bandwidth.disk,
            alignment.bitwise,
        )
        part = CheckPart(**(told["part"] | {"fresh": False}))
        {check.__name__: check for check in checks}[told["check"]](part)
        return


def in_group(
    part: CheckPart, exchange: Callable[[CheckPart, torch.device], CollectiveOutcome]
) -> CollectiveOutcome:
    """Return what ``exchange`` finds in a group of all processes of this machine; :func:`leave_group` ends it."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # noqa: PLC0415

    on_gpu = gpus() >= part.size
    store = FileStore(str(Path(part.folder) / "store"), part.size)
    os.environ.update(part.env)
    return _exchanged(part, store, take_gpu(part.rank) if on_gpu else None, exchange)


def _in_turn(part: CheckPart) -> CollectiveOutcome:
    """Exchange with the other machine, with the first GPU of both, then with the second, and so on.

    As many as both have, and as fit into the time: rank 0 decides whether there is one more turn. An agent of
    an earlier release makes no offer; then the first GPUs exchange, without the job's environment, as it does.
    Two machines that are one host have the same GPUs, which NCCL refuses to connect with themselves: their processors
    exchange.
    """
    import torch.distributed as dist  # noqa: PLC0415

    began, own = time.monotonic(), gpus()
    own = min(own, part.gpus or own)
    ids = gpu_ids(own)
    store, theirs = meeting.met(part, {"gpus": own, "env": _digest(part.env), "ids": ids})
    if set(ids) & set(theirs.get("ids", ())):
        own = 0
    if part.env and theirs.get("env") != _digest(part.env):
        part = replace(part, env={})
    os.environ.update(part.env)
    turns = max(1, min(own, int(theirs.get("gpus", 1))))
    found: list[CollectiveOutcome] = []
    while True:
        turn = len(found)
        try:
            device = take_gpu(turn) if own else None
            found.append(_exchanged(part, meeting.of_turn(store, turn), device, _all_gather))
            if turns == 1:
                return found[0]
            dist.barrier()  # the other may still be reading from this group
        except Exception as error:
            if turns == 1:
                raise
            raise RuntimeError(f"GPU {turn}: {type(error).__name__}: {error}") from error
        if not _one_more(store, part, len(found), turns, time.monotonic() - began):
            return replace(_of_all(found), turns=len(found), of_turns=turns)
        leave_group()


def _one_more(store: Store, part: CheckPart, done: int, turns: int, took_s: float) -> bool:
    """Return whether both machines take another turn: by the clock of rank 0, so that none waits alone."""
    if done == turns:
        return False
    if part.rank == 0:
        fits = took_s * (done + 1) / done < TURNS_SHARE * part.timeout_s
        store.set(f"after-{done}", "go" if fits else "end")
        return fits
    return bool(store.get(f"after-{done}") == b"go")


def _of_all(found: Sequence[CollectiveOutcome]) -> CollectiveOutcome:
    """Return the outcome of the turn with damaged bytes, else of the slowest."""
    gpu = min(range(len(found)), key=lambda at: (not found[at].wrong_bytes, found[at].value or 0.0))
    return replace(found[gpu], gpu=gpu)


def _exchanged(
    part: CheckPart,
    store: Store,
    device: torch.device | None,
    exchange: Callable[[CheckPart, torch.device], CollectiveOutcome],
) -> CollectiveOutcome:
    """Return what ``exchange`` finds in a new group on ``device``; None: on the processor."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    meeting.bind(part)
    device = device or torch.device("cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=store,
        rank=part.rank,
        world_size=part.size,
        timeout=timedelta(seconds=part.timeout_s),
    )
    return replace(exchange(part, device), backend=backend, environment=_digest(part.env))


def gpus() -> int:
    """Return how many GPUs torch sees.

    Raises:
        RuntimeError: torch can use none of those that the driver shows; as torch reports it. Ranks could not either,
            and a check of the processors in their place would find the machine well.
    """
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    if torch.version.cuda is None:
        return 0
    from holdfast.agent.diagnostics import machine_state  # noqa: PLC0415  (only where they are looked for)

    if machine_state.visible_gpus():
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if not any(each in str(error) for each in _NO_FAULT):
                raise
    return 0


def gpu_ids(count: int) -> list[str]:
    """Return the names that the first ``count`` GPUs have in all the world."""
    import torch  # noqa: PLC0415

    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]


def take_gpu(index: int) -> torch.device:
    """Have this process use a GPU from now on."""
    import torch  # noqa: PLC0415

    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _digest(env: Mapping[str, str]) -> str:
    """Return what differs where the variables do; empty: there are none."""
    return hashlib.sha256(json.dumps(sorted(env.items())).encode()).hexdigest()[:8] if env else ""


def _all_to_all(part: CheckPart, device: torch.device) -> CollectiveOutcome:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    nbytes = CHECKED_BYTES // part.size
    others = range(part.size)
    given = torch.cat([_pattern(part.rank, other, nbytes) for other in others]).to(device)
    taken = torch.empty_like(given)
    measured = _measured(
        lambda much: dist.all_to_all_single(much[1], much[0]), (given, taken), device, part.measure
    )
    chunks = taken.cpu().reshape(part.size, nbytes)
    wrong = {source: _wrong(chunks[source], _pattern(source, part.rank, nbytes)) for source in others}
    return replace(measured.outcome((part.size - 1) / part.size), wrong_bytes=_only_bad(wrong))


def _all_gather(part: CheckPart, device: torch.device) -> CollectiveOutcome:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    given = _pattern(part.rank, 0, CHECKED_BYTES).to(device)
    taken = torch.empty(part.size * CHECKED_BYTES, dtype=torch.uint8, device=device)

    def gather(much: tuple[torch.Tensor, torch.Tensor]) -> None:
        dist.all_gather(list(much[1].chunk(part.size)), much[0])

    measured = _measured(gather, (given, taken), device, part.measure)
    wrong = {
        source: _wrong(chunk.cpu(), _pattern(source, 0, CHECKED_BYTES))
        for source, chunk in enumerate(taken.chunk(part.size))
    }
    return replace(measured.outcome(part.size - 1), wrong_bytes=_only_bad(wrong))


@dataclass(frozen=True)
class Measured:
    """The best of several rounds."""

    nbytes: int
    """Of what each process gave."""
    seconds: float
    """0: not measured."""
    repeats: int
    host: bool

    def outcome(self, share: float) -> CollectiveOutcome:
        """Return MB/s of the ``share`` of what each process gave that it received from others."""
        if not self.seconds:
            return CollectiveOutcome(host=self.host)
        rate = share * self.nbytes / self.seconds / 1e6
        return CollectiveOutcome(value=rate, unit="MB/s", repeats=self.repeats, host=self.host)


def _measured(
    exchange: Callable[[tuple[torch.Tensor, torch.Tensor]], object],
    checked: tuple[torch.Tensor, torch.Tensor],
    device: torch.device,
    measure: bool,
) -> Measured:
    """Exchange the bytes to be compared. To ``measure``: exchange them again (the first time connects), then rounds of
    as many bytes as fit a round's time; all processes agree on how many, by the slowest.
    """
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    host = device.type != "cuda"
    connect_s = _timed(lambda: exchange(checked), device)
    if not measure:
        return Measured(checked[0].numel(), 0.0, 0, host)
    if _slowest(connect_s, device) > PATIENCE_S:
        return Measured(checked[0].numel(), connect_s, 1, host)
    seconds = _slowest(_timed(lambda: exchange(checked), device), device)
    times = int(min(MOST_BYTES / CHECKED_BYTES, max(1.0, ROUND_S / seconds)))
    much = tuple(torch.zeros(times * each.numel(), dtype=torch.uint8, device=device) for each in checked)
    rounds = []
    for _ in range(ROUNDS):
        dist.barrier()
        rounds.append(_timed(lambda: exchange((much[0], much[1])), device))
    return Measured(much[0].numel(), min(rounds), ROUNDS, host)


def _slowest(seconds: float, device: torch.device) -> float:
    """Return the longest of all processes' times."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    told = torch.tensor([seconds], device=device)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told)


def _pattern(source: int, target: int, nbytes: int) -> torch.Tensor:
    """Return bytes that differ with their place, sender and receiver; any shift or swap shows."""
    import torch  # noqa: PLC0415

    # Of place p: 31 p + 17 (p // 256) + 7 source + 13 target + 1, in bytes that wrap round.
    page = torch.arange(256).mul_(31).add_(source * 7 + target * 13 + 1).to(torch.uint8)
    pages = torch.arange(-(-nbytes // 256)).mul_(17).to(torch.uint8)
    return (pages.unsqueeze(1) + page).flatten()[:nbytes]


def _wrong(got: torch.Tensor, expected: torch.Tensor) -> int:
    return int((got != expected).sum())


def _only_bad(wrong: dict[int, int]) -> dict[int, int]:
    return {rank: count for rank, count in wrong.items() if count}


def _timed(collective: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one round."""
    import torch  # noqa: PLC0415

    started = time.perf_counter()
    collective()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(time.perf_counter() - started, 1e-9)
