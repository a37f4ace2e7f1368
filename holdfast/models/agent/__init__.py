"""Messages between agents, playbooks and the gateway. Every command carries (job, epoch, incarnation)."""

from __future__ import annotations

from holdfast.models.agent.diagnosis import (
    Check,
    Command,
    Diagnose,
    EndedPart,
    FlightRecord,
    Frame,
    RankResult,
    StackDump,
    StepDigest,
)
from holdfast.models.agent.epochs import (
    Ahead,
    Fence,
    Hold,
    OpenRendezvous,
    PrepareCode,
    Rendezvous,
    Replay,
    Start,
    Waiting,
    store_ahead,
)
from holdfast.models.agent.heartbeat import Contact, Heard, Heartbeat, Register, Report, Vitals, Witness
from holdfast.models.agent.shards import Mirror, Persist, Prove
from holdfast.models.agent.state import (
    AgentState,
    JobOnMachine,
    RankPhase,
    RankState,
    Settled,
    StepMark,
    StepTimes,
)

__all__ = [
    "AgentState",
    "Ahead",
    "Check",
    "Command",
    "Contact",
    "Diagnose",
    "EndedPart",
    "Fence",
    "FlightRecord",
    "Frame",
    "Heard",
    "Heartbeat",
    "Hold",
    "JobOnMachine",
    "Mirror",
    "OpenRendezvous",
    "Persist",
    "PrepareCode",
    "Prove",
    "RankPhase",
    "RankResult",
    "RankState",
    "Register",
    "Rendezvous",
    "Replay",
    "Report",
    "Settled",
    "StackDump",
    "Start",
    "StepDigest",
    "StepMark",
    "StepTimes",
    "Vitals",
    "Waiting",
    "Witness",
    "store_ahead",
]
