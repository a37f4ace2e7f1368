"""Machines from Slurm. A machine is a node that we hold in a single-node allocation of its own.

Not one allocation of many nodes: a node's failure ends only its own job, the pool grows and shrinks without resizing
a job, what Slurm cannot give now waits in its queue, and any user may do it. Machines are named after their nodes, so
that offences, drains and incidents speak of what the cluster's operators know.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

from holdfast.drivers.base import Leaving, Supplied, require_unit
from holdfast.drivers.slurm import holdings, sbatch_options
from holdfast.drivers.slurm.allocations import Allocations, looks
from holdfast.drivers.slurm.commands import Runner, SlurmCommands, run_here
from holdfast.drivers.slurm.job_environment import environment
from holdfast.drivers.slurm.listing import Allocation
from holdfast.drivers.slurm.nodes import MARK, SlurmNodes
from holdfast.drivers.slurm.record import EvictedNode, HeldNode, RecordFile, SlurmRecord
from holdfast.drivers.slurm_settings import SlurmSettings
from holdfast.errors import RefusedError, SettingsError, UnavailableError, UnknownError
from holdfast.models.machine import Scope
from holdfast.paths import machine_dir
from holdfast.settings import Settings, read

REBOOT_POLL_S = 5.0
_ANY_NODE, _THIS_NODE = "holdfast group=", "holdfast node="


class SlurmDriver:
    """Nodes of one cluster for one site. ``agent`` is the command that starts a machine's agent."""

    name = "slurm"

    def __init__(
        self,
        settings: Settings,
        own: SlurmSettings | None = None,
        *,
        agent: Sequence[str] = (),
        run: Runner = run_here,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Make a driver; ``run`` runs Slurm's commands, in the environment ``env`` (default: this process's).

        ``own`` are the driver's own settings; default: as the site has them.

        Raises:
            SettingsError: an option cannot be understood, or the batch script is not there.
        """
        own = own or read(SlurmSettings, settings.home)
        self.home = settings.home.resolve()
        self._start_s = own.start_s
        script = own.script or _packaged_script()
        if not script.is_file():
            raise SettingsError(f"HOLDFAST_SLURM_SCRIPT = {script}: no such file")
        self._options = sbatch_options.parsed(own.options)
        given = environment(self.home, own.python, agent, os.environ if env is None else env)
        self._slurm = SlurmCommands(given, patience_s=own.patience_s, command_s=own.command_s, run=run)
        self._nodes = SlurmNodes(self._slurm)
        self._allocations = Allocations(
            self._slurm,
            self._nodes,
            home=self.home,
            job_name=own.job_name or f"holdfast-{_hash(str(self.home))}",
            script=script,
            options=self._options,
            kill_s=own.kill_s,
        )
        self._file = RecordFile(self.home)

    def machines(self) -> list[Supplied]:
        """Return all nodes that we hold or held and did not give back; not queued jobs, which have no name yet.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        record, jobs = self._look()
        if not record.machines:
            return []
        nodes = self._nodes.known(record.machines)
        return [
            holdings.supplied(name, held, holdings.job_of(name, held, jobs), nodes.get(name))
            for name, held in record.machines.items()
        ]

    def leaving(self) -> list[Leaving]:
        """Return our nodes that others drain, with the reason that they gave Slurm.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        record, _ = self._look()
        serving = [name for name, held in record.machines.items() if held.evicted is None]
        found = self._nodes.known(serving)
        return [
            Leaving(name=name, reason=f"Slurm: {node.reason or 'no reason given'}")
            for name, node in found.items()
            if node.drained and not node.reason.startswith(MARK)
        ]

    def provision(self, n: int, group: str = "") -> list[str]:
        """Ask for ``n`` more nodes; returns the names of those that Slurm gave within ``start_s``.

        What it did not give yet stays in the queue, counts as asked for the next time, and becomes a machine when it
        starts. ``group`` is a feature that the nodes must have (``--constraint``).

        Raises:
            SettingsError: ``n`` is negative, Slurm does not know the feature, or refuses an option.
            UnavailableError: slurmctld does not answer.
        """
        if n < 0:
            raise SettingsError(f"provision: n = {n}, expected 0 or more.")
        if n == 0:
            return []
        with self._file.changing():
            record, jobs = self._look(locked=True)
            kind = f"{_ANY_NODE}{group}"
            ours = [job for job in jobs.values() if job.queued and job.comment.startswith(f"{kind}#")]
            if stuck := [str(job.id) for job in ours if job.stuck]:
                with suppress(SettingsError, RefusedError, UnknownError):
                    self._slurm("scancel", *stuck)
            asked = [job.id for job in ours if not job.stuck][:n]
            own = sbatch_options.value_of(self._options, "--constraint", "-C")
            features = [each for each in (own, group) if each]
            options = [
                *self._exclude(record, jobs),
                *([f"--constraint={'&'.join(features)}"] if group else []),
            ]
            asked += [self._allocations.submit(kind, options) for _ in range(n - len(asked))]
        return self._started(asked)

    def withdraw(self) -> None:
        """Cancel our jobs that wait for any node.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        queued = [
            str(job.id)
            for job in self._allocations.all().values()
            if job.queued and job.comment.startswith(_ANY_NODE)
        ]
        if queued:
            self._slurm("scancel", "--state=PENDING", *queued)

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """End our allocation of the node, all processes first; keep the node out of ours from now on.

        Scope ``cluster``: the node is drained with ``reason``, so that no job gets it; set down when it does not end
        our processes in ``kill_s``, as a dead node. A user without that right only keeps it from this site. Scope
        ``job``: others may use the node, this site does not. An allocation that Slurm itself took away (time limit,
        preemption), or that a person cancelled, is no fault of its node, and nothing is drained.

        Raises:
            UnknownError: it was never a machine of this site.
            ReplacedUnitError: the node was allocated again since ``incarnation``.
            UnavailableError: slurmctld does not answer, or our processes may still run.
        """
        if scope is Scope.CLUSTER:
            self._wait_completed(machine)
        with self._file.changing():
            record, jobs = self._look(locked=True)
            held = self._known(record, machine)
            if held is None:
                return
            require_unit(machine, incarnation, str(held.job))
            if held.evicted is None:
                held = held.model_copy(update={"evicted": EvictedNode(scope=scope, reason=reason)})
                record = record.with_machine(machine, held)
                self._file.write(record)
            assert held.evicted is not None
            job = holdings.job_of(machine, held, jobs)
            # We cancel a job only after its node was drained.
            wanted = scope is Scope.CLUSTER and not (job and (job.taken_away or job.cancelled))
            if wanted and not held.evicted.mark and (mark := self._nodes.drain(machine, held.evicted.reason)):
                marked = held.evicted.model_copy(update={"mark": mark})
                record = record.with_machine(machine, held.model_copy(update={"evicted": marked}))
                self._file.write(record)
            self._keep_queued_off(record, jobs)
        self._end(machine, held.job, f"{MARK}{reason}")

    def release(self, machine: str, incarnation: str = "") -> None:
        """Put a repaired node to work again: resume it if we drained it, and allocate that very node.

        Raises:
            UnknownError: it was never a machine of this site, or was given back.
            ReplacedUnitError: the node was allocated again since ``incarnation``, and that allocation was evicted or
                is over.
            RefusedError: another user drained the node or set it down, or we may not resume it.
            UnavailableError: slurmctld does not answer.
        """
        with self._file.changing():
            record, jobs = self._look(locked=True)
            held = self._known(record, machine)
            if held is None:
                raise UnknownError(f"machine {machine!r} was given back to Slurm: provision a new one.")
            job = holdings.job_of(machine, held, jobs)
            if held.evicted is None and job is not None and not job.over:
                return
            require_unit(machine, incarnation, str(held.job))
            self._nodes.resume(machine)
            kind = f"{_THIS_NODE}{machine}"
            # A release that was killed before it wrote the job down: a second one would wait for the first for ever.
            waiting = (each for each in jobs.values() if each.id > held.job and not each.over)
            asked = next((each.id for each in waiting if each.comment.startswith(f"{kind}#")), None)
            new = asked or self._allocations.submit(kind, [f"--nodelist={machine}"])
            self._file.write(record.with_machine(machine, HeldNode(job=new)))
        self._started([new])

    def reboot(self, machine: str, reason: str, incarnation: str, wait_s: float) -> str:
        """Have Slurm restart the node (``scontrol reboot``, which runs the site's ``RebootProgram``).

        It stays down until it is released. It is up once the node reports another boot than before; waiting for one
        that reports none ends in the error below.

        Raises:
            UnknownError: it was never a machine of this site.
            ReplacedUnitError: the node was allocated again since ``incarnation``.
            RefusedError: it is in service, another user drained the node or set it down, or Slurm does not let us.
            UnavailableError: slurmctld does not answer, or the node did not come up in time.
        """
        record, _ = self._look()
        held = self._known(record, machine)
        if held is None:
            raise UnknownError(f"machine {machine!r} was given back to Slurm: provision a new one.")
        require_unit(machine, incarnation, str(held.job))
        if held.evicted is None:
            raise RefusedError(f"machine {machine} is in service: it is not restarted.")
        deadline = time.monotonic() + wait_s
        before = self._nodes.booted(machine)
        self._nodes.reboot(machine, f"{MARK}{reason}")
        while not self._nodes.is_another_boot(now := self._nodes.booted(machine), before):
            if time.monotonic() > deadline:
                raise UnavailableError(f"machine {machine} was not seen to restart within {wait_s:g} s")
            time.sleep(min(REBOOT_POLL_S, wait_s / 10))
        return f"booted at {now}, before at {before or 'an unknown time'}"

    def retire(self, machine: str, incarnation: str = "") -> None:
        """Give the node back to Slurm. A drain stays: it is the operators' to lift.

        A node that answers is not set down, however long its epilog takes: it was not at fault.

        Raises:
            UnknownError: it was never a machine of this site.
            ReplacedUnitError: the node was allocated again since ``incarnation``.
            UnavailableError: slurmctld does not answer, or our processes may still run.
        """
        record, _ = self._look()
        held = self._known(record, machine)
        if held is None:
            return
        require_unit(machine, incarnation, str(held.job))
        self._end(machine, held.job, f"{MARK}retired, and its node does not answer", may_give_up=False)
        with self._file.changing() as record:
            present = record.machines.get(machine)
            if present is None or present.job == held.job:  # else Slurm gave us the node again meanwhile
                self._file.write(record.without(machine))

    def _look(self, *, locked: bool = False) -> tuple[SlurmRecord, dict[int, Allocation]]:
        """Return the record and our Slurm jobs by id; nodes of jobs that started since are machines from now on."""
        jobs = self._allocations.all()
        if not locked and not holdings.arrived(self._file.read(), jobs):
            return self._file.read(), jobs
        if not locked:
            with self._file.changing():
                return self._look(locked=True)
        record = self._file.read()
        if arrived := holdings.arrived(record, jobs):
            for job in arrived:
                record = record.with_machine(job.node, HeldNode(job=job.id))
            self._file.write(record)
        return record, jobs

    def _known(self, record: SlurmRecord, machine: str) -> HeldNode | None:
        """Return the record's entry for ``machine``; None: it was given back."""
        if machine in record.machines:
            return record.machines[machine]
        if machine in record.retired:
            return None
        known = ", ".join(record.machines) or "none"
        raise UnknownError(f"unknown machine {machine!r}. Machines: {known}.")

    def _exclude(self, record: SlurmRecord, jobs: Mapping[int, Allocation]) -> list[str]:
        """Return sbatch's option to exclude nodes out of service; Slurm itself knows only the drained ones.

        It takes the place of one among the site's own options, whose nodes it names as well.
        """
        out = [
            name for name, held in record.machines.items() if held.evicted or holdings.ended(name, held, jobs)
        ]
        known = self._nodes.known(out)  # with a node that left the configuration, sbatch would refuse
        own = sbatch_options.value_of(self._options, "--exclude", "-x")
        return [f"--exclude={','.join([*([own] if own else []), *known])}"] if known else []

    def _keep_queued_off(self, record: SlurmRecord, jobs: Mapping[int, Allocation]) -> None:
        """Exclude evicted nodes from jobs that were queued before the eviction."""
        queued = [job for job in jobs.values() if job.queued and job.comment.startswith(_ANY_NODE)]
        for job in queued:
            for option in self._exclude(record, jobs):
                out = option.partition("=")[2]
                with suppress(SettingsError, RefusedError, UnknownError):
                    # It may have started, or ended. An agent on an evicted machine leaves by itself.
                    self._slurm("scontrol", "update", f"JobId={job.id}", f"ExcNodeList={out}")

    def _started(self, asked: Sequence[int]) -> list[str]:
        """Return the nodes of ``asked`` jobs once all run, or when ``start_s`` is over.

        Raises:
            UnavailableError: one ended at once; the others stay, and join when their agents register.
        """

        running: list[str] = []
        for _ in looks(self._start_s):
            _, jobs = self._look()
            mine = [jobs[each] for each in asked if each in jobs]
            running = [job.node for job in mine if job.node and not job.over]
            for job in mine:
                if job.over and not job.taken_away:
                    log = machine_dir(self.home, job.node or "NODE") / "agent.log"
                    raise UnavailableError(
                        f"Slurm job {job.id} on {job.node or 'no node'} ended at once ({job.state.lower()}): see {log}"
                    )
            if not any(job.queued for job in mine):
                break
        return running

    def _end(self, machine: str, job: int, reason: str, *, may_give_up: bool = True) -> None:
        serving = [name for name, held in self._file.read().machines.items() if held.evicted is None]
        self._allocations.end(machine, job, reason, beside=serving, may_give_up=may_give_up)

    def _wait_completed(self, machine: str) -> None:
        """Wait until a job that ends without us has ended: only then Slurm shows whether it took the job away."""
        record, jobs = self._look()
        held = record.machines.get(machine)
        job = holdings.job_of(machine, held, jobs) if held is not None and held.evicted is None else None
        if job is not None and job.completing and not job.taken_away:
            self._allocations.wait_over(machine, job.id)


def _packaged_script() -> Path:
    return Path(str(resources.files("holdfast"))) / "deployments" / "slurm" / "agent.sbatch"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
