"""The outcome of one life of a job, and what may end an incident in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.policies.accounting.lost_time import Account
from holdfast.simulate.simulated_replica import RoleLife

REAL_TIME = "eviction on a real-time check"
STOP_TIME = "eviction by stop-time checks"
AGGREGATED = "over-eviction by aggregation"
REPLAYED = "eviction by dual-phase replay"
ACCUSED = "eviction of the accused"
REATTEMPT = "reattempt"
ROLLBACK = "rollback"
UPDATE = "code update"
MERGED = "code update merged into a restart"
HUMAN = "a person"
WAITED = "started again after a wait"
MOVED = "planned move"


@dataclass
class Life:
    """The outcome of one job. Seconds."""

    account: Account
    incidents: int = 0
    evictions: int = 0
    restarts: int = 0
    in_process: int = 0
    """Of these, those in which the ranks that had not died kept their processes."""
    steps: int = 0
    swaps_short: int = 0
    """Swaps for which the pool was too small."""
    mechanisms: Counter[str] = field(default_factory=Counter)
    """Mechanisms that ended the incidents."""
    classes: Counter[str] = field(default_factory=Counter)
    tiers: Counter[str] = field(default_factory=Counter)
    """Where states were restored from."""
    roles: dict[str, RoleLife] = field(default_factory=dict)
