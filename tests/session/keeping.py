"""A fake agent that keeps processes from one epoch to the next."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from holdfast.agent import wire
from holdfast.agent.ranks.rank_main import RankOrder
from tests.session.harness import FakeAgent, _forks, run_script


class KeepingAgent(FakeAgent):
    """One epoch after the other; a control page for each."""

    def environ(self, rank: int, restore: tuple[int, Path] | None = None, **extra: str) -> dict[str, str]:
        """As every rank's, with a control page of the epoch."""
        environ = super().environ(rank, restore, **extra)
        control = self.control(rank)
        self.controls[rank] = wire.Control(control, create=True)
        return environ | {wire.ENV_CONTROL: str(control), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def control(self, rank: int, epoch: int | None = None) -> Path:
        """Path of a rank's control page."""
        return self.folder / f"c{epoch or self.epoch}-{rank}"

    def end(self, ranks: Collection[int]) -> None:
        """Say that the epoch is over."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for rank in ranks:
                sender.sendto(wire.END, str(wire.end_socket(self.control(rank))))

    def left(self) -> set[int]:
        """Ranks that are out of their training function."""
        return {each["rank"] for each in self.of("left")}

    def go_on(
        self,
        script: Path,
        args: Sequence[str],
        kept: Collection[int],
        restore: Callable[[int], tuple[int, Path]] | None = None,
    ) -> None:
        """Begin the next epoch: with the processes of ``kept``, and new ones for the other ranks."""
        from torch.distributed import TCPStore  # noqa: PLC0415  (only tests with ranks need torch here)

        before, self.epoch = self.epoch, self.epoch + 1
        self._store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
        )
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port)}
        for rank in range(self.world_size):
            env = self.environ(rank, restore(rank) if restore else None, **meet)
            if rank not in kept:
                body = (env, str(self.log), str(script), [str(each) for each in args])
                self.ranks[rank] = _forks.Process(target=run_script, args=body)
                self.ranks[rank].start()
                continue
            order = RankOrder(rank, self.epoch, str(script), (), "", str(self.log), env[wire.ENV_SOCKET], env)
            path = wire.next_order(self.control(rank, before))
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(order)))
            os.rename(fresh, path)

    def quiet(self, of: Callable[[], int], for_s: float) -> None:
        """Wait until ``of`` has not changed for so long."""
        seen, since = of(), time.monotonic()
        while time.monotonic() - since < for_s:
            if of() != seen:
                seen, since = of(), time.monotonic()
            time.sleep(0.01)
