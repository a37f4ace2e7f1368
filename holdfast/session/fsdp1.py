"""Optimizers of FullyShardedDataParallel (FSDP1), whose parameters are flat: torch alone can name what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer

from holdfast.errors import CheckpointError
from holdfast.session.encoded import Encoded, Placing
from holdfast.session.known import Known
from holdfast.storage.checkpoints.structure import Encoder, decode


def is_fsdp1(modules: Mapping[str, nn.Module]) -> bool:
    """Whether a part of any module is wrapped by FSDP1."""
    return any(
        isinstance(each, FullyShardedDataParallel) for module in modules.values() for each in module.modules()
    )


class StockOptimizerPart:
    """An optimizer whose state torch describes: collective, and anew at every save."""

    def __init__(self, name: str, optimizer: Optimizer, modules: Mapping[str, nn.Module]) -> None:
        self.name, self.optimizer = name, optimizer
        mine = {id(each) for group in optimizer.param_groups for each in group["params"]}
        owners = [module for module in modules.values() if mine <= {id(each) for each in module.parameters()}]
        if not owners:
            raise CheckpointError(
                f"state[{name!r}]: no module in the state dictionary has all of this optimizer's parameters. "
                "Add the model to it, for example {'model': model, 'optimizer': optimizer}."
            )
        self.module = owners[0]

    def tensors(self) -> Iterator[Tensor]:
        """Nothing: what torch hands out are copies."""
        return iter(())

    def updated(self) -> Iterator[Tensor]:
        """Nothing: what torch hands out are copies."""
        return iter(())

    def forget(self) -> None:
        """Nothing is kept."""

    def encode(self, placing: Placing) -> Encoded:
        """What is saved of it."""
        encoder = Encoder(placing.optimizer())
        node = encoder.part(self.name, dict(get_optimizer_state_dict(self.module, self.optimizer)))
        return Encoded.by(encoder, {self.name: node})

    def want(self, known: Known) -> None:
        """Make room for what the checkpoint holds of it.

        Raises:
            CheckpointError: it does not fit this optimizer.
        """
        encoder = Encoder(lambda path, _: ".".join(map(str, path)))
        self._node = encoder.part(self.name, dict(get_optimizer_state_dict(self.module, self.optimizer)))
        for name, live in encoder.items.items():
            if not known.has(name):
                raise CheckpointError(f"{name}: the optimizer has it, and the checkpoint does not")
            known.targets[name] = live
        self._saved = known.nodes.get(self.name)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Take what was loaded."""
        fresh = decode(self._node, tensors)
        if self._saved is not None:
            groups = decode(self._saved["param_groups"], tensors)
            if len(groups) == len(fresh["param_groups"]):
                fresh["param_groups"] = groups
        set_optimizer_state_dict(self.module, self.optimizer, fresh)
