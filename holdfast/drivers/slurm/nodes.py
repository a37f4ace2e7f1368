"""Nodes of a Slurm cluster: their state in Slurm, draining, resuming, setting down.

For a user who may not do that (it takes Slurm's operator rights) the result or an error shows it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime

from holdfast.drivers.slurm import listing
from holdfast.drivers.slurm.commands import SlurmCommands
from holdfast.drivers.slurm.listing import Node
from holdfast.errors import HoldfastError, RefusedError, UnknownError
from holdfast.listen import takes_connections

MARK = "holdfast: "
"""Prefix of the reason of every node that we drained."""
_REACH_S = 2.0
_WITNESSES = 3
"""Other nodes that are tried before one that does not answer counts as dead."""
_OF_SLURM = ("not responding", "node unexpectedly rebooted", "reboot timed out", "resumetimeout reached")
"""Beginnings of reasons that slurmctld itself gives: such a node may come back by itself (``ReturnToService``)."""
_DRAINS_OF_SLURM = (
    "kill task failed",
    "prolog error",
    "epilog error",
    "prolog/epilog failure",
    "batch job complete f",
)
"""Beginnings of reasons that Slurm drains a node for by itself: a restart is what helps there."""
_SAME_BOOT_S = 60.0
"""slurmctld reckons a boot from the uptime with every registration of a node: one boot is seconds off from itself."""
_PORT = "6818"
_PORT_OF_ALL = re.compile(r"^SlurmdPort\s*=\s*(\d+)", re.MULTILINE)


class SlurmNodes:
    """All nodes that ``slurm`` lists."""

    def __init__(self, slurm: SlurmCommands) -> None:
        self._slurm = slurm
        self._port = ""

    def known(self, names: Collection[str]) -> dict[str, Node]:
        """Return those of ``names`` that Slurm knows; all of them, in no known state, where it shows us no nodes."""
        if not names:
            return {}
        try:
            return self._listed(f"--nodes={','.join(names)}")
        except RefusedError:  # PrivateData=nodes
            return {name: Node(name=name, state="UNKNOWN") for name in names}

    def _listed(self, *which: str) -> dict[str, Node]:
        command = ("sinfo", "--noheader", "--Node", "--all", *which, f"--format={listing.NODE_FORMAT}")
        return listing.nodes(self._slurm(*command))

    def drain(self, machine: str, reason: str) -> str:
        """Drain the node; returns the reason it now carries, empty when we may not or it is gone."""
        mark = f"{MARK}{reason}"
        node = self.known([machine]).get(machine)
        # A node that a person set down stays down, with their reason.
        if node is None or node.drained or _set_down_by_others(node):
            return node.reason if node and node.reason.startswith(MARK) else ""
        try:
            self._update(machine, "drain", mark)
        except (RefusedError, UnknownError):
            return ""
        return mark

    def resume(self, machine: str) -> None:
        """Give a node that we drained, or that is down, to jobs again.

        Raises:
            UnknownError: Slurm knows no such node.
            RefusedError: another user drained it or set it down, or we may not resume it.
        """
        node = self.known([machine]).get(machine)
        if node is None:
            raise UnknownError(
                f"machine {machine}: Slurm knows no node of that name any more (taken out of slurm.conf?). "
                "It can be released once slurm.conf has it again."
            )
        if not (node.drained or node.down):
            return
        if why := _out_by_others(node):
            raise RefusedError(
                f"machine {machine} is {why}: resume it there first (`scontrol update nodename={machine} "
                "state=resume`)."
            )
        self._update(machine, "resume", "")

    def set_down(self, machine: str, reason: str) -> None:
        """Set the node down as dead, so that Slurm ends what it ran.

        Raises:
            RefusedError: we may not.
        """
        node = self.known([machine]).get(machine)
        if node is not None and node.reason and not node.reason.startswith(MARK):
            reason = f"{node.reason}; {reason}"  # another user's reason comes first, and stays theirs to lift
        self._update(machine, "down", reason)

    def is_dead(self, machine: str, *, beside: Collection[str]) -> bool:
        """Return whether the node's slurmd takes no connections: Slurm notices a dead node only after SlurmdTimeout.

        False where no other node takes any either: a firewall keeps this host from all of them.
        The others are of ``beside``, or without any there whichever Slurm has.
        """
        if self.is_reachable(machine):
            return False
        others = [name for name in beside if name != machine] or self._answering(machine)
        return any(self.is_reachable(name) for name in others[:_WITNESSES])

    def _answering(self, but: str) -> list[str]:
        try:
            listed = self._listed()
        except HoldfastError:
            return []
        return [name for name, node in listed.items() if node.usable and name != but]

    def is_reachable(self, machine: str) -> bool:
        """Return whether the node's slurmd takes connections."""
        fields = self._fields(machine)
        if not fields:
            return False
        try:
            port = int(fields.get("Port") or self._port_of_all())
        except (OSError, ValueError):
            return False
        return takes_connections(fields.get("NodeAddr", machine), port, _REACH_S)

    def booted(self, machine: str) -> str:
        """Return when the node booted, as it reported to Slurm; empty: it is away, or never reported it."""
        fields = self._fields(machine)
        away = any(word in fields.get("State", "") for word in ("REBOOT", "NOT_RESPONDING", "*"))
        boot_time = fields.get("BootTime", "")
        return "" if away or boot_time in ("None", "Unknown") else boot_time

    @staticmethod
    def is_another_boot(now: str, before: str) -> bool:
        """Return whether ``now`` is of another boot than ``before``; both are as :meth:`booted` returns them."""
        if not now or not before:
            return bool(now)
        try:
            apart = datetime.fromisoformat(now) - datetime.fromisoformat(before)
        except ValueError:
            return now != before
        return abs(apart.total_seconds()) > _SAME_BOOT_S

    def reboot(self, machine: str, reason: str) -> None:
        """Ask Slurm to restart the node, and to leave it down afterwards.

        Raises:
            RefusedError: another user drained it or set it down, whose reason ours would replace; or we may not, or
                Slurm does not know how.
        """
        node = self.known([machine]).get(machine)
        by_slurm = node is not None and node.reason.lower().startswith(_DRAINS_OF_SLURM)
        if node is not None and not by_slurm and (why := _out_by_others(node)):
            raise RefusedError(
                f"machine {machine} is {why}: it may be needed as it is, and is not restarted."
            )
        self._slurm("scontrol", "reboot", "ASAP", "nextstate=DOWN", f"reason={reason}", machine)

    def _fields(self, machine: str) -> dict[str, str]:
        """Return the fields that ``scontrol`` shows of the node; empty: the command failed."""
        try:
            output = self._slurm("scontrol", "--oneliner", "show", "node", machine)
        except HoldfastError:
            return {}
        # The first of a name counts: the reason, which is free text, comes near the end.
        return dict(field.split("=", 1) for field in reversed(output.split()) if "=" in field)

    def _port_of_all(self) -> str:
        """Return ``SlurmdPort`` of the cluster: ``scontrol`` shows with a node only a port that differs from it."""
        if not self._port:
            try:
                found = _PORT_OF_ALL.search(self._slurm("scontrol", "show", "config"))
            except HoldfastError:
                return _PORT
            self._port = found[1] if found else _PORT
        return self._port

    def _update(self, machine: str, state: str, reason: str) -> None:
        command = ["scontrol", "update", f"nodename={machine}", f"state={state}"]
        self._slurm(*command, *([f"reason={reason}"] if reason else []))


def _set_down_by_others(node: Node) -> bool:
    return node.down and not node.reason.lower().startswith((MARK, *_OF_SLURM))


def _out_by_others(node: Node) -> str:
    """Describe what a person did to keep jobs off the node; empty: nothing."""
    drained = node.drained and not node.reason.startswith(MARK)
    if not drained and not _set_down_by_others(node):
        return ""
    return (
        f"{'drained' if drained else 'down'} in Slurm, not by Holdfast ({node.reason or 'no reason given'})"
    )
