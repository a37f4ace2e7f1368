"""Inputs of the hang vote: facts of each rank, and of the job's earlier starts and pauses."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from holdfast.models.agent import RankPhase, RankState, Vitals
from holdfast.models.base import Frozen


class Learned(Frozen):
    """Durations that a job took before, in seconds; 0 or left out: not known."""

    start_s: float = 0.0
    """Its longest start: from the start of an epoch to its first step."""
    phase_s: Mapping[str, float] = Field(default_factory=dict)
    """The longest pause between two steps in each declared phase."""
    reports: bool = False
    """A rank of it reported in this or an earlier epoch: it has a Session."""


NOTHING_LEARNED = Learned()


class Stillness(Frozen):
    """Seconds for which a machine's GPUs and ports have done next to nothing: see :class:`HangFacts`."""

    spins_s: float = 0.0
    quiet_s: float = 0.0
    cold_s: float = 0.0


class HangFacts(Frozen):
    """One rank over the recent past, from the caller's history. Times in seconds."""

    rank: int
    machine: str
    silent_s: float
    """Seconds since its last completed step, or since its start before the first."""
    cpu_cores: float
    """Processor seconds used, or waited for, per second over the last few heartbeats."""
    process_state: str = ""
    activity: str = ""
    steps_done: int = 0
    """Steps done in this epoch."""
    step_s: float = 0.0
    """Usual duration of a step (mean, or better a high percentile); 0: unknown."""
    longest_gap_s: float = 0.0
    """Longest gap between two steps of this epoch outside exempt activities and holds; 0: unknown."""
    stopped_s: float = 0.0
    """Seconds for which it has been seen in state T without interruption."""
    blocked_s: float | None = None
    """Seconds for which it has been seen in state D without interruption; None: not known."""
    stacks_unchanged: bool = False
    """Several stack samples over the window were equal."""
    stacks_change: bool = False
    """Two of them differ."""
    children_cores: float = 0.0
    """As ``cpu_cores``, of all processes that it started; reported before the first step and while a step is late."""
    io_bytes_s: float = 0.0
    """Bytes read and written by them and itself, per second; reported at the same times."""
    gpu_busy: float | None = None
    """Utilisation of its machine's GPUs, 0 to 1."""
    traffic_bytes_s: float | None = None
    """Traffic of its machine's ports, bytes per second."""
    sm_active: float | None = None
    """Share of its machine's SMs that work; None: not known."""
    spins_s: float = 0.0
    """Seconds for which its machine's GPUs looked busy while their SMs and the ports did next to nothing."""
    quiet_s: float = 0.0
    """Seconds for which its machine's ports have carried next to nothing, after they had in this epoch."""
    cold_s: float = 0.0
    """Seconds for which the tensor cores have done next to nothing, after they had worked in this epoch."""
    reports: bool = True
    """It has a Session, which reports steps."""
    log_silent_s: float | None = None
    """Seconds since the last line of its log; None: not known."""
    paused: bool = False
    phase: RankPhase = RankPhase.RUNNING
    exit_code: int | None = None
    """Exit status once it has exited."""

    @property
    def ended(self) -> bool:
        """Whether it finished its work: it exited with status 0."""
        return self.phase is RankPhase.EXITED and self.exit_code == 0


def facts(
    machine: str,
    state: RankState,
    now: float,
    *,
    woke_at: float = 0.0,
    earlier: tuple[float, float] | None = None,
    longest_gap_s: float = 0.0,
    stopped_since: float | None = None,
    blocked_since: float | None = None,
    work_before: tuple[float, float, float] | None = None,
    stacks_unchanged: bool = False,
    stacks_change: bool = False,
    vitals: Vitals | None = None,
    still: Stillness = Stillness(),  # noqa: B008  (frozen)
) -> HangFacts:
    """Return facts from a rank's newest state.

    Args:
        machine: where it runs.
        state: from the newest heartbeat.
        now: when that heartbeat was made, on the agent's own clock (Unix seconds).
        woke_at: time of a heartbeat before which none came for long: silence counts from there.
        earlier: (time, ``cpu_s``) of a heartbeat a few seconds before; None counts as busy.
        longest_gap_s: see :class:`HangFacts`.
        stopped_since: time of the first heartbeat of the present run in state T.
        blocked_since: the same for state D.
        work_before: (time, ``children_cpu_s``, ``io_bytes``) of a heartbeat a few seconds before.
        stacks_unchanged: see :class:`HangFacts`.
        stacks_change: see :class:`HangFacts`.
        vitals: of its machine.
        still: for how long these have shown nothing.
    """
    cores, children, moved = 1.0, 0.0, 0.0
    if earlier is not None and now > earlier[0]:
        passed = now - earlier[0]
        cores = max(0.0, state.cpu_s - earlier[1]) / passed
    if work_before is not None and now > work_before[0]:
        passed = now - work_before[0]
        children = max(0.0, state.children_cpu_s - work_before[1]) / passed
        moved = max(0.0, state.io_bytes - work_before[2]) / passed
    return HangFacts(
        rank=state.rank,
        machine=machine,
        silent_s=max(0.0, now - max(state.step_at, woke_at)),
        cpu_cores=cores,
        process_state=state.process_state,
        activity=state.activity,
        steps_done=state.steps_done,
        step_s=state.step_s,
        longest_gap_s=longest_gap_s,
        stopped_s=0.0 if stopped_since is None else max(0.0, now - stopped_since),
        blocked_s=0.0 if blocked_since is None else max(0.0, now - blocked_since),
        stacks_unchanged=stacks_unchanged,
        stacks_change=stacks_change,
        children_cores=children,
        io_bytes_s=moved,
        gpu_busy=vitals.gpu_busy if vitals else None,
        traffic_bytes_s=vitals.traffic_bytes_s if vitals else None,
        sm_active=vitals.sm_active if vitals else None,
        spins_s=still.spins_s,
        quiet_s=still.quiet_s,
        cold_s=still.cold_s,
        reports=state.reports,
        log_silent_s=None if state.log_at is None else max(0.0, now - state.log_at),
        paused=state.paused,
        phase=state.phase,
        exit_code=state.exit_code,
    )
