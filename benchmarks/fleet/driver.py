"""The driver of the fleet, as a plug-in: machines are agents inside the fleet's process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.drivers.base import Supplied
from holdfast.models.machine import Scope
from holdfast.settings import Settings

_ANSWER_S = 60.0


def socket_of(home: Path) -> Path:
    """Where the fleet's process listens."""
    return home.resolve() / "fleet.sock"


class FleetDriver:
    """Asks the fleet's process."""

    name = "fleet"

    def __init__(self, settings: Settings) -> None:
        self._socket = socket_of(settings.home)

    def machines(self) -> list[Supplied]:
        """All machines of the fleet."""
        return [Supplied(name=each["name"], alive=each["alive"]) for each in self._ask("machines")]

    def provision(self, n: int, group: str = "") -> list[str]:
        """Start ``n`` more; there is one kind."""
        return list(self._ask("provision", n=n))

    def withdraw(self) -> None:
        """Nothing waits."""

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Its agent ends."""
        self._ask("kill", names=[machine])

    def release(self, machine: str, incarnation: str = "") -> None:
        """It starts again."""
        self._ask("release", name=machine)

    def retire(self, machine: str, incarnation: str = "") -> None:
        """It is gone."""
        self._ask("retire", name=machine)

    def kill(self, machines: Iterable[str]) -> None:
        """The fault: these machines die in the same moment."""
        self._ask("kill", names=list(machines))

    def _ask(self, op: str, **arguments: Any) -> Any:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(_ANSWER_S)
                line.connect(str(self._socket))
                line.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
                return json.loads(line.makefile().readline())
        except (FileNotFoundError, ConnectionRefusedError):
            return []  # the fleet is gone, and all its machines with it
