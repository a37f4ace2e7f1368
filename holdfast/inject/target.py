"""Where a fault goes: one machine of one project, and what runs on it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import httpx
import psutil

from holdfast import drivers, secret, settings, tls
from holdfast.agent.client import raise_for
from holdfast.drivers import processes
from holdfast.errors import RefusedError, UnavailableError, UnknownError
from holdfast.models.agent import AgentState, RankPhase
from holdfast.models.roles import ReplicaState
from holdfast.paths import machine_dir
from holdfast.settings import Settings

# Replays run under the job's name with a suffix; faults are meant for the job itself.
_REPLAY_MARK = "~"


class Target:
    """A machine that is there, checked when this is made.

    Raises:
        UnknownError: the project has no such machine.
        RefusedError: the machine is dead already, or runs on another host.
    """

    def __init__(self, home: Path, machine: str) -> None:
        self.home = home.resolve()
        self.machine = machine
        self.folder = machine_dir(self.home, machine)
        known = {each.name: each for each in drivers.from_settings(self.settings).machines()}
        if machine not in known:
            names = ", ".join(known) or "none"
            raise UnknownError(f"unknown machine {machine!r}. Machines: {names}.")
        if not known[machine].alive:
            raise RefusedError(f"machine {machine} is not up ({known[machine].detail}): nothing to break.")
        if self.settings.driver != "local" and processes.find_agent(self.folder) is None:
            # Process numbers of another host belong to other processes here.
            raise RefusedError(f"machine {machine} does not run on this host: inject faults where it runs.")

    @property
    def key(self) -> str:
        """A key that distinguishes the machine from those of the same name in other projects of this host."""
        return f"{hashlib.sha256(str(self.home).encode()).hexdigest()[:8]}-{self.machine}"

    @property
    def settings(self) -> Settings:
        """The project's settings."""
        return settings.load(self.home)

    def ranks(self) -> dict[int, int]:
        """Return pids of the job's live rank processes on this machine, by rank."""
        return {
            rank.rank: rank.pid
            for job in self._state().jobs
            if _REPLAY_MARK not in job.job
            for rank in job.ranks
            if rank.phase is not RankPhase.EXITED
        }

    def rank(self, wanted: int | None) -> tuple[int, int]:
        """Return rank and pid of ``wanted``, or of the machine's first rank.

        Raises:
            RefusedError: no rank runs on this machine.
            UnknownError: that rank does not.
        """
        ranks = self.ranks()
        if not ranks:
            raise RefusedError(f"no rank runs on machine {self.machine}: choose a machine of a running job.")
        chosen = min(ranks) if wanted is None else wanted
        if chosen not in ranks:
            there = ", ".join(str(rank) for rank in sorted(ranks))
            raise UnknownError(f"rank {chosen} does not run on machine {self.machine}. Ranks there: {there}.")
        return chosen, ranks[chosen]

    def replicas(self) -> list[ReplicaState]:
        """Return the replicas of roles whose processes are there, in the order of role and index."""
        there = [each for each in self._state().replicas if each.pid]
        return sorted(there, key=lambda each: (each.role, each.index))

    def job(self) -> str:
        """Name of the job that runs on this machine.

        Raises:
            RefusedError: none does.
        """
        jobs = [job.job for job in self._state().jobs if _REPLAY_MARK not in job.job]
        if not jobs:
            raise RefusedError(f"no job runs on machine {self.machine}: choose a machine of a running job.")
        return jobs[0]

    def plant(self, name: str, content: dict[str, Any]) -> None:
        """Put a fault file where the machine's processes look for it.

        Raises:
            RefusedError: the machine's processes do not look.
        """
        if not self._armed():
            raise RefusedError(
                f"machine {self.machine} does not take faults of its arithmetic: they are armed only in "
                "machines started with HOLDFAST_ARM_FAULTS=1 in the environment (`holdfast down`, then "
                "`HOLDFAST_ARM_FAULTS=1 holdfast up`)."
            )
        folder = self.folder / "faults"
        folder.mkdir(exist_ok=True)
        new = folder / f"{name}.new"
        new.write_text(json.dumps(content))
        os.replace(new, folder / name)

    def gateway(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the project's gateway."""
        return _call(self.settings, method, self.settings.gateway + path, body)

    def _armed(self) -> bool:
        try:
            agent = processes.find_agent(self.folder)
            return agent is not None and agent.environ().get("HOLDFAST_ARM_FAULTS") == "1"
        except psutil.Error:
            return False

    def _state(self) -> AgentState:
        try:
            address = json.loads((self.folder / "agent.json").read_text())["address"]
        except (OSError, ValueError, KeyError):
            raise UnavailableError(f"machine {self.machine} is starting: try again in a second.") from None
        return AgentState.model_validate(
            _call(self.settings, "GET", f"{tls.of(self.settings).scheme}://{address}/v1/state")
        )


def any_machine(home: Path) -> str:
    """Return the last machine of the running job, for a caller that named none.

    Raises:
        RefusedError: no job runs, or several do.
        UnavailableError: the gateway does not answer.
    """
    known = settings.load(home)
    jobs = [job for job in _call(known, "GET", f"{known.gateway}/v1/jobs") if job["state"] == "running"]
    if len(jobs) != 1:
        names = ", ".join(job["spec"]["name"] for job in jobs) or "none"
        raise RefusedError(f"name the machine (--machine): running jobs are {names}, expected one")
    return str(jobs[0]["machines"][-1])


def _call(known: Settings, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Authorization": secret.of(known).header}
    certified = tls.of(known)
    try:
        with httpx.Client(timeout=10.0, trust_env=False, **certified.http()) as http:
            # Of the two only agents may have a name of their own in their certificate.
            named = {} if url.startswith(known.gateway) else certified.to_agent()
            answer = http.request(method, url, json=body, headers=headers, extensions=named)
    except httpx.HTTPError as error:
        raise UnavailableError(f"{url}: {type(error).__name__} {error}".rstrip()) from None
    raise_for(answer)
    return answer.json()
