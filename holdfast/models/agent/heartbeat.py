"""Messages that agents send unasked: registrations, heartbeats and reports; and the gateway's answers."""

from __future__ import annotations

from pydantic import Field

from holdfast.models.agent.state import JobOnMachine, StepMark
from holdfast.models.alert import Alert, Finding
from holdfast.models.base import EpochNumber, Finite, Frozen, Reading
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.location import Location
from holdfast.models.names import Incarnation, MachineName, ObjectKey, RunName
from holdfast.models.replica import StateDigests
from holdfast.models.roles import ReplicaState, RolePlan


class Register(Frozen):
    """First word of an agent after it started: a new incarnation."""

    machine: MachineName
    incarnation: Incarnation
    address: str
    data_address: str
    pid: int
    checks: tuple[Finding, ...] = ()
    """Results of the self-checks that a standby passes before it may join."""
    location: Location = Field(default_factory=dict)
    """Its failure domains by level."""


class Vitals(Frozen):
    """Activity of a machine's GPUs and ports. None: it has none, or they do not report it."""

    gpu_busy: Reading = None
    """Mean utilisation of its GPUs, 0 to 1."""
    traffic_bytes_s: Reading = None
    """Bytes that its ports sent and received per second between the last two readings."""
    sm_active: Reading = None
    """Share of SMs that were busy, of the GPU with most of them, 0 to 1."""
    tensor_active: Reading = None
    """Share of the time in which its tensor cores worked, likewise."""


class Heartbeat(Frozen):
    """The message that an agent sends every interval."""

    machine: MachineName
    incarnation: Incarnation
    at: Finite
    jobs: tuple[JobOnMachine, ...] = ()
    vitals: Vitals | None = None
    replicas: tuple[ReplicaState, ...] = ()
    """Of roles; and ranks that announced an address."""
    plan: str = ""
    """Version of the plan for its replicas that it goes by."""
    cores: int = Field(0, ge=0)
    """Cores that its processes may use; 0: not reported, as by an older release."""
    silence_s: Finite = 0.0
    """Its longest silence of the gateway within the last minutes, as far as a lease can cover it."""


class Witness(Frozen):
    """Another machine, which can be asked whether it reaches the gateway."""

    name: MachineName
    address: str


class Heard(Frozen):
    """The gateway's answer to a heartbeat."""

    ok: bool = True
    lease_s: float = Field(0.0, ge=0)
    """Seconds that the machine's ranks may run from this heartbeat on; 0: no limit was given."""
    longest_delay_s: float = Field(0.0, ge=0)
    """The longest silence that a lease can cover; 0: not given, as by an older release."""
    renews: bool = True
    """False: the machine is being evicted; what it was granted before is not prolonged."""
    witnesses: tuple[Witness, ...] = ()
    """Machines elsewhere in the fleet."""
    plan: RolePlan | None = None
    """Replicas that it is to run; None: as before."""
    term: int = Field(0, ge=0)
    """Grows with every change of the gateway that leads; 0: it is the only one, or of an older release."""


class Contact(Frozen):
    """An agent's contact with the gateway, by its own clock."""

    heard_s: Finite
    """Seconds since the gateway last answered it."""
    since_s: Finite
    """Seconds for which it has been answered without a gap."""


class Report(Frozen):
    """Alerts and facts that an agent sends at once."""

    machine: MachineName
    incarnation: Incarnation
    at: Finite = 0.0
    """When it was sent, on the machine's clock; 0: not reported."""
    alerts: tuple[Alert, ...] = ()
    started: tuple[StepMark, ...] = ()
    """Steps that should not wait for a heartbeat: an epoch's first, and the last ones before a fence."""
    job: RunName | None = None
    epoch: EpochNumber | None = None
    done: tuple[int, ...] = ()
    """Ranks that ended with status 0."""
    checkpoints: tuple[RemoteCheckpoint, ...] = ()
    """Checkpoints whose manifest was just written to S3."""
    holds: tuple[StateDigests, ...] = ()
    """Digests of what ranks of this machine saved, to be compared with those of their replicas."""
    dropped: tuple[ObjectKey, ...] = ()
    """Keys of checkpoints of ``job`` that were just removed from S3."""
