"""Order of a script's calls: ``restore``, then ``step`` before ``checkpoint``, with the same parts."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast.errors import ScriptRefusedError
from holdfast.session.part import parts_of


class Calls:
    """Watches a script's calls until its first save, where an order that would lose steps at a restart is refused."""

    def __init__(self) -> None:
        self._parts: dict[str, bool] | None = None
        self._stepped = self._checked = False
        self._updated: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        updated = self._updated
        self._hook = register_optimizer_step_post_hook(lambda optimizer, *_: updated.add(optimizer))

    def restores(self, state: Mapping[str, Any]) -> None:
        """Note the parts of a restore.

        Raises:
            ScriptRefusedError: a step was reported before, or ``state`` is no dictionary of names.
        """
        if self._stepped:
            raise ScriptRefusedError(
                "Session.restore() was called after Session.step(): it would take the state back, and the steps would "
                "go on. Call it once, before the first step."
            )
        parts = parts_of(state)
        self._parts = {name: part.strict for name, part in parts.items() if part.value is not None}

    def steps(self) -> None:
        """Note that a step is complete."""
        if not self._stepped:
            self._stepped = True
            self._hook.remove()

    def saves(self, state: Mapping[str, Any]) -> None:
        """Check the calls before the first save; later saves are not looked at.

        Raises:
            ScriptRefusedError: what is wrong with their order or their parts, and what to call.
        """
        if self._checked:
            return
        self._hook.remove()
        if self._parts is None:
            raise ScriptRefusedError(
                "Session.checkpoint() was called without Session.restore(): after a fault the job would begin at step "
                "0 again. Call start = session.restore(state) before the first step, on all ranks."
            )
        parts = {name: part.value for name, part in parts_of(state).items()}
        _require_same({name for name, value in parts.items() if value is not None}, self._parts)
        if not self._stepped:
            self._require_no_update(parts.items())
        self._checked = True

    def _require_no_update(self, parts: Iterable[tuple[str, Any]]) -> None:
        for name, value in parts:
            if isinstance(value, Optimizer) and value in self._updated:
                raise ScriptRefusedError(
                    f"Session.checkpoint() was called before Session.step(), after a step of state[{name!r}]: the "
                    "state would be saved as that of the step before it. Call session.step(number) first, then "
                    "session.checkpoint(state)."
                )


def _require_same(saved: set[str], restored: Mapping[str, bool]) -> None:
    """Ensure that a restore with the parts ``restored`` (and whether each must be there) takes all that is saved."""
    if unknown := sorted(saved - restored.keys()):
        raise ScriptRefusedError(
            f"state {unknown[0]!r}: Session.checkpoint() was given this part, and Session.restore() was not (it was "
            f"given {_listed(restored)}): after a fault the job could not be restored. Give both the same state."
        )
    if missing := sorted(name for name, strict in restored.items() if strict and name not in saved):
        raise ScriptRefusedError(
            f"state {missing[0]!r}: Session.restore() was given this part, and Session.checkpoint() was not (it was "
            f"given {_listed(saved)}): after a fault the job could not be restored. Give both the same state."
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names))) or "none"
