"""Checks of a machine, and evidence from it: stacks, flight records, results of replays."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.models.agent.epochs import Rendezvous
from holdfast.models.base import Frozen, Step
from holdfast.models.names import Incarnation, MachineName, MachineOrNone, Rank, RunName
from holdfast.models.open_enum import OpenEnum


class Check(OpenEnum):
    """Stop-time checks that an agent runs, cheapest first; a ladder's tiers are some of them.

    Other packages declare more (:mod:`holdfast.plugins`, diagnosers).
    """

    INSPECT = "inspect"
    """Inspect the machine: kernel log, GPUs, host, disks, network."""
    VENDOR = "vendor"
    """The vendor's own diagnostics, where they are installed."""
    MATMUL = "matmul"
    """A fixed matrix product per GPU, or per rank on the processor: right, and as fast as the others'."""
    PCIE = "pcie"
    """Transfers between host memory and each GPU, both ways, every byte compared; without GPUs within the memory."""
    DISK = "disk"
    """The disk of the machine's folder: bytes written through to it and read back, all compared."""
    ALL_TO_ALL = "all_to_all"
    """Among the processes of each machine."""
    ALL_GATHER = "all_gather"
    """Between neighbours, every byte compared; then suspects with good machines."""
    NIC = "nic"
    """RDMA through each adapter of the machine, from it to itself."""
    BITWISE = "bitwise"
    """One step of the same small model everywhere; the results compared bit for bit."""
    FLIGHT_RECORDER = "flight_recorder"
    """The record of the ranks' collectives from before they died."""


class Diagnose(Frozen):
    """Run stop-time checks in fresh processes.

    :class:`Check` lists them. ``all_gather`` runs with ``peer`` (data moves both ways, integrity checked);
    all others check this machine alone.
    """

    job: RunName
    epoch: int
    incarnation: Incarnation
    check: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    """One of :class:`Check`, or a diagnoser that is installed on the machine."""
    processes: int = 2
    """Of the check on this machine; ``all_gather`` has one, which lets as many GPUs take part, one after the other."""
    whole: bool = False
    """The machine serves no job: all of its GPUs take part, however few processes are asked for."""
    peer: MachineOrNone = ""
    """The neighbour's machine name (``all_gather``)."""
    process_rank: int = 0
    """This machine's position in the pair (``all_gather``)."""
    rendezvous: Rendezvous | None = None
    measure: bool = False
    """Time collectives as well: some rounds more, for which a recovery would wait."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables by which the job's ranks choose their way over the network; collectives go the same way."""
    timeout_s: float = 30.0


class Command(Frozen):
    """Have a command of another package done on this machine (:mod:`holdfast.plugins`). Safe to repeat."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    values: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float = Field(30.0, gt=0)


class Frame(Frozen):
    """One frame of a stack."""

    function: str
    file: str
    line: int = 0
    source: str = ""
    """Text of the line, of the innermost frame of a rank's main thread, where its file can be read."""


class EndedPart(Frozen):
    """A thread, child process or task of a rank that ended by an exception while the rank's process lives on."""

    part: str
    """Such as ``thread Thread-1 (fetch)``; empty: it could not be started."""
    error: str
    """Type and message, or the line of the log."""
    place: str = ""
    """Innermost place in the job's code, such as ``data.py:31``."""
    own: bool = False
    """Whether its cause is known not to be the machine's."""


class StackDump(Frozen):
    """Stack of one thread of one process on one machine."""

    machine: MachineName
    rank: Rank | None
    pid: int
    thread: str = "MainThread"
    process_state: str = ""
    child: bool = False
    """A child of the rank process (data loader, checkpoint writer)."""
    frames: tuple[Frame, ...] = ()
    error: str = ""
    ended: EndedPart | None = None
    """Of a rank's main thread: the part that ended since its last step, by the rank's log."""
    step: Step | None = None
    """Of a rank's main thread: the newest step that the rank had completed; None: unknown, or one ended meanwhile."""


class FlightRecord(Frozen):
    """How far one rank came in one process group, as PyTorch's flight recorder has it."""

    rank: Rank
    group: str
    """Name of the group, the same on all of its members. Groups with different members may share one."""
    ranks: tuple[int, ...] = ()
    """Its members, as far as they are recorded."""
    backend: str = ""
    """Such as ``nccl``: each numbers its own collectives of a group."""
    enqueued: int
    """Number of the newest collective that the rank issued; -1: none."""
    started: int | None = None
    """Number of the newest that its GPU came to; None: starts are not recorded."""
    completed: int
    """All up to this number are completed."""
    operation: str = ""
    """The newest one, such as ``gloo:all_reduce``."""
    recent: dict[int, str] = Field(default_factory=dict)
    """The newest few by number, with their sizes where these must be equal on all members."""
    sending: bool = False
    """It waits in a point-to-point operation of this group."""
    peers: tuple[int, ...] = ()
    """The ranks on the other side, as far as they are recorded."""


class StepDigest(Frozen):
    """Digests of what one rank computed in one step of a replay, to the last bit; empty: it did not report them."""

    step: Step
    loss: str = ""
    grad_norm: str = ""
    gradients: str = ""
    """As the optimizers were given them."""
    parameters: str = ""
    """As the optimizers left them."""


class RankResult(Frozen):
    """How a replayed rank ended."""

    rank: Rank
    machine: MachineName
    ok: bool
    detail: str = ""
    digests: tuple[StepDigest, ...] = ()
    kind: str = ""
    """Hardware and software that they are of."""
    began: bool = True
    """It completed a step, or reported a number that is not finite."""
    unloadable: str = ""
    """Why it could not load the state; empty: it could, or ended otherwise."""
    error_type: str = ""
    """Exception that it ended with; empty: none, or numbers that are not finite."""
    cause: str = ""
    """Cause that the registry of log patterns gives for that exception's words; empty: none."""
