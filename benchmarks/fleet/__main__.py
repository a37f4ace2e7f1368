"""``python -m benchmarks.fleet --home HOME``: the process of all machines, with commands through a socket."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.fleet.agents import FleetAgent, Machine, put_in_place
from benchmarks.fleet.driver import socket_of
from holdfast import secret, settings

_BOOT_AT_ONCE = 32


class Fleet:
    """All machines of the fleet."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._settings = settings.load(home)
        self._secret = secret.of(self._settings)
        # A collection looks at all that lives, here a thousand agents: as seldom as in a thousand processes.
        gc.set_threshold(100_000, 50, 100)
        self._machines: dict[str, Machine] = {}
        self._next = 0
        self._agents: dict[str, FleetAgent] = {}
        FleetAgent.others = self._agents
        put_in_place(self._settings)

    async def listed(self) -> list[dict[str, Any]]:
        """All machines that were not retired."""
        return [{"name": name, "alive": machine.alive} for name, machine in self._machines.items()]

    async def provision(self, n: int) -> list[str]:
        """Start so many new machines."""
        names = [f"m{number}" for number in range(self._next, self._next + n)]
        self._next += n
        await self.boot(names)
        return names

    async def boot(self, names: Iterable[str]) -> None:
        """Start agents, a few at a time: making one takes milliseconds, in which the others stand still."""
        for at, name in enumerate(names):
            machine = self._machines[name] = Machine(name, self._home, self._settings, self._secret)
            self._agents[name] = machine.agent
            if at % _BOOT_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def kill(self, names: Iterable[str]) -> None:
        """Machines die, all in the same moment."""
        for name in names:
            if name in self._machines:
                self._machines[name].kill()
                self._agents.pop(name, None)

    async def retire(self, name: str) -> None:
        """One that is not needed any more."""
        await self.kill([name])
        self._machines.pop(name, None)

    async def release(self, name: str) -> None:
        """A dead one starts again."""
        if name in self._machines and not self._machines[name].alive:
            await self.boot([name])

    async def serve(self) -> None:
        """Answer requests, one line each, until killed."""
        path = socket_of(self._home)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, path, limit=1 << 20)
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        what = {
            "machines": self.listed,
            "provision": self.provision,
            "kill": self.kill,
            "retire": self.retire,
            "release": self.release,
        }[request.pop("op")]
        answer = await what(**request)  # type: ignore[operator]
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--home", required=True, type=Path)
    home = parser.parse_args().home.resolve()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Per machine: two listeners, a socket of its ranks, connections from and to the gateway and playbooks.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def run() -> None:
        await Fleet(home).serve()

    asyncio.run(run())


if __name__ == "__main__":
    main()
