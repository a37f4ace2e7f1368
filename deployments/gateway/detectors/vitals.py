"""Time for which the GPUs and ports of machines have shown no activity, from heartbeat to heartbeat."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from holdfast.models.agent import Vitals
from holdfast.policies.config.policy import HangPolicy
from holdfast.policies.detect.hang_facts import Stillness


@dataclass
class _Machine:
    """One machine in one epoch of its job."""

    life: Hashable
    at: float = 0.0
    spins_since: float | None = None
    quiet_since: float | None = None
    cold_since: float | None = None
    carried: bool = False
    computed: bool = False

    def add(self, vitals: Vitals, at: float, policy: HangPolicy) -> None:
        self.at = at
        traffic, tensor, sm = vitals.traffic_bytes_s, vitals.tensor_active, vitals.sm_active
        quiet = traffic is not None and traffic < policy.spinning_bytes_s
        cold = tensor is not None and tensor < policy.cold_share
        self.carried |= traffic is not None and not quiet
        self.computed |= tensor is not None and not cold
        idle = sm is not None and sm < policy.spinning_sm_share
        spins = idle and quiet and self.carried and (vitals.gpu_busy or 0.0) >= policy.spinning_gpu_share
        self.spins_since = _since(self.spins_since, at, spins)
        self.quiet_since = _since(self.quiet_since, at, quiet and self.carried)
        self.cold_since = _since(self.cold_since, at, cold and self.computed)


class VitalSigns:
    """Vitals of all machines that run a job; one small record each."""

    def __init__(self, policy: HangPolicy) -> None:
        self._policy = policy
        self._machines: dict[str, _Machine] = {}

    def observe(self, machine: str, life: Hashable, vitals: Vitals | None, at: float) -> None:
        """Take the vitals of a heartbeat made at ``at``; another ``life`` (job, epoch) starts a new history."""
        known = self._machines.get(machine)
        if known is None or known.life != life:
            known = self._machines[machine] = _Machine(life)
        known.add(vitals or Vitals(), at, self._policy)

    def still(self, machine: str) -> Stillness:
        """Return for how long the machine has shown no activity, up to its newest heartbeat."""
        known = self._machines.get(machine)
        if known is None:
            return Stillness()
        return Stillness(
            spins_s=_age(known.spins_since, known.at),
            quiet_s=_age(known.quiet_since, known.at),
            cold_s=_age(known.cold_since, known.at),
        )

    def keep(self, machines: Collection[str]) -> None:
        """Forget all others."""
        self._machines = {name: known for name, known in self._machines.items() if name in machines}


def _since(before: float | None, at: float, now_so: bool) -> float | None:
    if not now_so:
        return None
    return at if before is None else before


def _age(since: float | None, at: float) -> float:
    return 0.0 if since is None else max(0.0, at - since)
