"""A fake agent that copies shards as the real one does, over its own data port, to the folder of a second machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from holdfast.agent import wire
from holdfast.agent.checkpoints import shard_client, shard_port
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.replication import Replicator
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.run import Run
from holdfast.models.checkpoint import Copies, RestorePlan
from holdfast.policies.restore.restore_plan import choose
from holdfast.storage.checkpoints.save import buffers
from tests.session.harness import FakeAgent

SECRET = "paired"


class PairedAgent(FakeAgent):
    """Its ranks' shards go to ``folder/m1`` as well, in as many copies as ``copies`` states."""

    def __init__(self, folder: Path, world_size: int, copies: Copies) -> None:
        self.copies = copies
        self.here, self.there = Memory("m0", folder), Memory("m1", folder / "m1")
        self._port = shard_port.ShardPort(self.there, SECRET, "127.0.0.1")
        self._replicator = Replicator(SECRET, Metrics())
        super().__init__(folder, world_size, replicate=False)

    def on_message(self, message: dict[str, Any]) -> None:
        """Copy as :class:`holdfast.agent.ranks.reactions.RunEvents` does."""
        if message["t"] in (("common", "kept") if self.copies.own == 1 else ("saved",)):
            start = SimpleNamespace(peer=self._port.address, copies=self.copies)
            run = SimpleNamespace(name=f"gpt.{self.epoch}", controls=self.controls, start=start, board=None)
            self._replicator.saved(cast(Run, run), message["rank"], message["step"], Path(message["path"]))

    def environ(self, rank: int, restore: tuple[int, Path] | None = None, **extra: str) -> dict[str, str]:
        """With the number of copies in the ranks' environment."""
        return super().environ(
            rank, restore, **{wire.ENV_COPIES: self.copies.model_dump_json(), wire.ENV_PATIENCE: ""} | extra
        )

    def chosen(self) -> RestorePlan:
        """The plan that the restore policy makes of the shards on both machines."""
        shards = (*self.here.shards(), *self.there.shards())
        return choose(shards, (), self.world_size, dict.fromkeys(range(self.world_size), "m0"))

    @property
    def alive(self) -> bool:
        """Whether all ranks run."""
        return all(each.exitcode is None for each in self.ranks)

    def common(self) -> set[int]:
        """Steps that all ranks reported as common, in this epoch."""
        return set.intersection(
            *({each["step"] for each in self.of("common", rank)} for rank in range(self.world_size))
        )

    def settle(self) -> None:
        """Wait until no copy is under way."""
        self.wait_for(lambda: not self._replicator.busy)

    def fetch(self, rank: int, plan: RestorePlan) -> Path:
        """The rank's shard of the step, brought here if it is not; every byte verified."""
        found = self.here.find("gpt", rank, plan.step, plan.epoch)
        if found is None:
            folder = self.here.own("gpt")
            held, header = self.there.require("gpt", rank, plan.step, plan.epoch)
            assert buffers.verify(held) == header
            return shard_client.pull(
                self._port.address,
                SECRET,
                job="gpt",
                rank=rank,
                step=plan.step,
                folder=folder,
                saved_by=plan.epoch,
                own_buffers=self.copies.own,
            )
        buffers.verify(found[0])
        return found[0]

    def close(self) -> None:
        """Stop everything."""
        super().close()
        self._replicator.close()
        self._port.close()
