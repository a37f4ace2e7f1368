"""Loops of torchtitan's kind: put :class:`HoldfastCheckpointer` around the checkpointer, change nothing else.

::

    trainer.checkpointer = HoldfastCheckpointer(trainer.checkpointer)
    trainer.train()

Such a loop calls ``checkpointer.load()`` once and ``checkpointer.save(step)`` after every step, and keeps its state in
``checkpointer.states``: a dictionary of ``Stateful``, in which containers hold the model's parts and their optimizers.
Nothing of torchtitan is imported: any loop of that shape will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, SupportsFloat

from torch import nn
from torch.optim import Optimizer

from holdfast.errors import ScriptRefusedError
from holdfast.session import Session


def unwrapped(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``states`` with modules and optimizers in place of their containers, as a ``Session`` takes them.

    A container of one is replaced under its name, one of several (pipeline stages) under ``name-0``, ``name-1``, ...
    """
    found: dict[str, Any] = {}
    for name, each in states.items():
        inside = _inside(each)
        many = len(inside) > 1
        found |= {f"{name}-{number}" if many else name: one for number, one in enumerate(inside)}
    return found


def states_of(trainer: Any) -> dict[str, Any]:
    """Return the states of a trainer whose own checkpointing is switched off: its checkpointer then keeps none.

    Args:
        trainer: has ``model_parts``, ``optimizers``, ``lr_schedulers``, ``dataloader``, and is a ``Stateful`` itself.
    """
    parts = list(trainer.model_parts)
    models = {"model": parts[0]} if len(parts) == 1 else {f"model-{n}": part for n, part in enumerate(parts)}
    return models | {
        "optimizer": trainer.optimizers,
        "lr_scheduler": trainer.lr_schedulers,
        "dataloader": trainer.dataloader,
        "train_state": trainer,
    }


def _inside(each: Any) -> Sequence[Any]:
    for attribute, kind in (("model", nn.Module), ("optimizers", Optimizer)):
        held = getattr(each, attribute, None)
        if isinstance(held, list | tuple) and held and all(isinstance(one, kind) for one in held):
            return held
    return [each]


_FUSED = re.compile("_(split|merge)_.+_on_(save|load)")
"""Names of the hooks by which a module of torchtitan saves a fused parameter as those that it was made of."""


def _hooks_of_fused(state: Mapping[str, Any]) -> list[dict[int, Any]]:
    """Return where modules in ``state`` keep such hooks."""
    return [
        hooks
        for each in state.values()
        if isinstance(each, nn.Module)
        for module in each.modules()
        for hooks in (module._state_dict_hooks, module._load_state_dict_pre_hooks)
        if any(map(_is_of_fused, hooks.values()))
    ]


@contextmanager
def _set_aside(places: Sequence[dict[int, Any]]) -> Iterator[None]:
    """Have fused parameters saved and loaded as they are: torch finds only those that there are."""
    before = [dict(hooks) for hooks in places]
    try:
        for hooks, held in zip(places, before, strict=True):
            _replace(hooks, {key: hook for key, hook in held.items() if not _is_of_fused(hook)})
        yield
    finally:
        for hooks, held in zip(places, before, strict=True):
            _replace(hooks, held)


def _is_of_fused(hook: Any) -> bool:
    return _FUSED.fullmatch(getattr(hook, "__name__", "")) is not None


def _replace(hooks: dict[int, Any], by: Mapping[int, Any]) -> None:
    hooks.clear()
    hooks.update(by)


class HoldfastCheckpointer:
    """A checkpointer that restores what the restore plan chose and saves every step; the one inside works as before.

    Without an agent (plain ``torchrun``) only the one inside does anything. All else that it has is there too.

    Args:
        checkpointer: has ``states``, ``load(step)`` and ``save(step, last_step)``.
        session: default: one of this process's environment.
        states: default: the checkpointer's; :func:`states_of` a trainer whose own checkpointing is off.
    """

    def __init__(
        self, checkpointer: Any, session: Session | None = None, *, states: Mapping[str, Any] | None = None
    ) -> None:
        self._inner = checkpointer
        self._session = session or Session()
        if states is None:
            if not hasattr(checkpointer, "states"):
                raise ScriptRefusedError(
                    f"the {type(checkpointer).__name__} has no states, since its checkpointing is off: give "
                    "HoldfastCheckpointer(trainer.checkpointer, states=states_of(trainer))"
                )
            states = checkpointer.states
        self._state = unwrapped(states)
        self._fused = _hooks_of_fused(self._state)
        self._numbers: dict[str, SupportsFloat | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load(self, step: int = -1) -> bool:
        """Bring back what the restore plan chose; for a job that has nothing yet, what the checkpointer inside has.

        Raises:
            ScriptRefusedError: see :meth:`holdfast.Session.restore`.
        """
        with _set_aside(self._fused):
            restored = self._session.restore(self._state)
        return bool(restored or self._inner.load(step=step))

    def report(self, loss: SupportsFloat | None = None, grad_norm: SupportsFloat | None = None) -> None:
        """Set the numbers of the step under way, to be watched for NaN; reported with the next :meth:`save`."""
        self._numbers = {"loss": loss, "grad_norm": grad_norm}

    def save(self, curr_step: int, last_step: bool = False) -> None:
        """Report the step and save it; then the checkpointer inside does as it is configured.

        Raises:
            ScriptRefusedError: see :meth:`holdfast.Session.checkpoint`.
        """
        numbers, self._numbers = self._numbers, {}
        self._session.step(curr_step, **numbers)
        with _set_aside(self._fused):
            self._session.checkpoint(self._state, last=last_step)
        if not self._session.replaying:
            self._inner.save(curr_step, last_step=last_step)
