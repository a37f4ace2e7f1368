"""One process's share of a stop-time check, and its outcome, as a file that the agent reads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

PATIENCE_S = 1.0
"""A measurement that takes so long with its first bytes alone is not repeated with more."""


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
        """File that this process writes its :class:`CheckOutcome` to."""
        return Path(self.folder) / f"{self.rank}.json"


@dataclass(frozen=True)
class CheckOutcome:
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
    def read(path: Path) -> CheckOutcome:
        """Read the outcome that a process left.

        Raises:
            OSError, ValueError: there is none, or it is not whole.
        """
        fields = json.loads(path.read_text())
        wrong = {int(rank): count for rank, count in fields.pop("wrong_bytes").items()}
        return CheckOutcome(wrong_bytes=wrong, **fields)
