"""The same job without faults, and its final weights beside those of the job that had them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from holdfast.client.gateway import Gateway
from holdfast.demo import weights
from holdfast.demo.weights import WeightsComparison
from holdfast.errors import HoldfastError, SettingsError
from holdfast.models.job import ENDED, Job, JobState
from holdfast.models.machine import MachineState
from holdfast.models.roles import TRAINER
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.code import versions

_POLL_S = 0.5


def why_differ(job: Job, sizes: Collection[int]) -> str:
    """Return why a run without faults may end with other weights although nothing was lost; empty: it may not.

    ``sizes``: the numbers of machines that the job ran on.
    """
    if len(sizes) > 1:
        ran = " and ".join(map(str, sorted(sizes)))
        return (
            f"the job ran on {ran} machines, and sums over another number of ranks differ in their last bits"
        )
    if roles := sorted(job.spec.roles.keys() - {TRAINER}):
        return f"what it learns may depend on when replicas of {', '.join(roles)} answer"
    return ""


@dataclass(frozen=True)
class Reference:
    """A job that is ``job`` but for its name and the file that it writes its weights to."""

    job: Job
    out: Path

    def __post_init__(self) -> None:
        """Refuse a file that is not among the script's arguments.

        Raises:
            SettingsError: it is none of the job's arguments.
        """
        if str(self.out) not in self.job.spec.args:
            raise SettingsError(
                f"--compare {self.out}: expected the file of final weights among the arguments of job "
                f"{self.job.name!r}, which are {' '.join(self.job.spec.args) or '(none)'}."
            )

    @property
    def other(self) -> Path:
        """Where the reference writes its weights."""
        return self.out.with_name(f"{self.out.stem}-without-faults{self.out.suffix}")

    def compare(
        self, settings: Settings, patience_s: float, say: Callable[[str], None]
    ) -> WeightsComparison | None:
        """Run the reference to its end and compare; None when one of the two did not end, which is reported."""
        try:
            with Gateway.open(settings) as gateway:
                if gateway.job(self.job.name).state is not JobState.DONE:
                    say("no comparison: the job has not ended")
                    return None
                say("now the same job without faults, to compare the weights")
                state = self._play(settings, gateway, patience_s)
            if state is not JobState.DONE:
                say(f"no comparison: the job without faults is {state}")
                return None
            return weights.compare(self.out, self.other)
        except (HoldfastError, OSError) as error:
            say(f"no comparison: {error}")
            return None

    def _play(self, settings: Settings, gateway: Gateway, patience_s: float) -> JobState:
        self.other.unlink(missing_ok=True)
        args = tuple(str(self.other) if arg == str(self.out) else arg for arg in self.job.spec.args)
        name = f"{self.job.name[:46]}-without-faults"
        spec = self.job.spec.model_copy(update={"name": name, "args": args})
        store = objects.from_settings(settings)
        archive = store.get(versions.key(self.job.name, self.job.code_version))
        store.put(versions.key(name, self.job.code_version), archive)
        until = time.time() + patience_s
        _await_machines(gateway, len(self.job.machines), until)
        gateway.submit(spec, self.job.code_version)
        while (state := gateway.job(name).state) not in ENDED and time.time() < until:
            time.sleep(_POLL_S)
        return state


def _await_machines(gateway: Gateway, wanted: int, until: float) -> None:
    """Wait for standbys: a machine that was hit last, and released, may still be on its way back."""
    while time.time() < until:
        standing_by = sum(each.state is MachineState.STANDBY for each in gateway.machines())
        if standing_by >= wanted:
            return
        time.sleep(_POLL_S)
