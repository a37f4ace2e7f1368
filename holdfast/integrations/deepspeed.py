"""DeepSpeed's ZeRO, stages 1 and 2: :func:`training_state` is the state dictionary that the ``Session`` takes.

::

    engine, *_ = deepspeed.initialize(model=model, config=config)
    session, state = holdfast.Session(), training_state(engine)
    for step in range(session.restore(state) + 1, steps + 1):
        ...  # engine(...), engine.backward(loss), engine.step()
        session.step(step, loss=loss.item())
        session.checkpoint(state)

Each rank's partition of the master weights and of the optimizer's state is saved as it lies there, without a gather,
under the parameters' names. Nothing of DeepSpeed is imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import _init_optim_state

from holdfast.errors import ScriptRefusedError
from holdfast.storage.checkpoints.format.flat import FlatShard, flat_shards

_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_PAD = "/padding/"


def training_state(engine: Any) -> dict[str, Any]:
    """Return everything that a DeepSpeed engine trains with, by name.

    Args:
        engine: what ``deepspeed.initialize`` returned first, with ZeRO of stage 1 or 2.

    Raises:
        ScriptRefusedError: it has another kind of optimizer.
    """
    state = {"model": engine.module, "zero": ZeroState(engine.optimizer), "engine": EngineState(engine)}
    if engine.lr_scheduler is not None:
        state["scheduler"] = engine.lr_scheduler
    return state


class ZeroState:
    """The partitions of a ``DeepSpeedZeroOptimizer``, as a ``Stateful``.

    Loading fills what is there: a fresh optimizer first makes its state.
    """

    def __init__(self, zero: Any) -> None:
        """Wrap ``engine.optimizer``.

        Raises:
            ScriptRefusedError: it is not that of ZeRO 1 or 2, or keeps its state elsewhere than in memory.
        """
        if not hasattr(zero, "single_partition_of_fp32_groups"):
            raise ScriptRefusedError(
                f"state 'zero': DeepSpeed trains with a {type(zero).__name__}: expected ZeRO of stage 1 or 2 "
                '("zero_optimization": {"stage": 1}). Without ZeRO, give the Session the model and the optimizer'
            )
        if "Muon" in type(zero.optimizer).__name__:
            raise ScriptRefusedError(
                "state 'zero': DeepSpeed keeps part of Muon's state beside the optimizer: it cannot be saved. "
                "Use another optimizer"
            )
        self._zero = zero

    def state_dict(self) -> dict[str, Any]:
        """Return parts of all tensors, options, and the loss scaler's numbers."""
        inner = self._zero.optimizer
        if not inner.state:
            _init_optim_state(inner)
        groups = [dict(self._group(number)) for number in range(len(inner.param_groups))]
        return {"groups": groups, "loss_scaler": dict(vars(self._zero.loss_scaler))}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load the rest of the state: tensors were filled in place."""
        zero = self._zero
        for number, (group, saved_group) in enumerate(
            zip(zero.optimizer.param_groups, saved["groups"], strict=True)
        ):
            group.update(saved_group["options"])
            values = zero.optimizer.state[zero.single_partition_of_fp32_groups[number]]
            for name, value in saved_group["rest"].items():
                held = values.get(name)
                if isinstance(held, Tensor) and isinstance(value, Tensor):
                    held.copy_(value)
                else:
                    values[name] = value
        vars(zero.loss_scaler).update(saved["loss_scaler"])

    def _group(self, number: int) -> Iterator[tuple[str, Any]]:
        zero = self._zero
        partition, group = zero.single_partition_of_fp32_groups[number], zero.optimizer.param_groups[number]
        values = zero.optimizer.state[partition]
        flat = {name: each for name, each in values.items() if _is_like(each, partition)}
        yield "masters", self._parts(number, partition.detach())
        yield "state", {name: self._parts(number, each) for name, each in flat.items()}
        yield "rest", {name: each for name, each in values.items() if name not in flat}
        yield "options", {name: each for name, each in group.items() if name != "params"}

    def _parts(self, number: int, local: Tensor) -> dict[str, FlatShard]:
        """Return the partition ``local`` of group ``number`` as parts of its parameters."""
        zero = self._zero
        rank = torch.distributed.get_rank(group=zero.real_dp_process_group[number])
        parts = flat_shards(self._shapes(number), local, rank * local.numel())
        return {name: each for name, each in parts.items() if not name.startswith(_PAD)}

    def _shapes(self, number: int) -> dict[str, Sequence[int]]:
        """Return the names and shapes in the flat buffer of a group, in its order."""
        zero, shapes, end = self._zero, dict[str, Sequence[int]](), 0
        params, starts = zero.round_robin_bit16_groups[number], zero.round_robin_bit16_offsets[number]
        for param, start in zip(params, starts, strict=True):
            if start > end:
                shapes[f"{_PAD}{end}"] = (start - end,)
            shapes[zero.param_names[param]] = tuple(param.shape)
            end = start + math.prod(param.shape)
        return shapes


class EngineState:
    """The counters of a DeepSpeed engine, as a ``Stateful``."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        """Return the counters by their names in the engine."""
        return {name: getattr(self._engine, name) for name in _COUNTS}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Count on from there."""
        for name in _COUNTS:
            setattr(self._engine, name, saved[name])


def _is_like(value: Any, partition: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == partition.shape and partition.dim() == 1
