"""State that a role's replicas hold, saved with the trainer's step and restored with it.

    servers = holdfast.Savepoints("server", fetch, fill, replicas=2)
    state = {"model": model, "servers": servers.part}
    session.restore(state)  # gives each server back what it held at that step

A parameter server or a cache has state that belongs to a step of the trainer: restored apart, one would be ahead of
the other. So the trainer's ranks ask for it at the end of the step, and it goes the way of all that they save: memory,
peer, disk and S3. The protocol between them is the script's own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast import roles
from holdfast.errors import CheckpointError, PartAwayError

if TYPE_CHECKING:
    from holdfast.session.part import Part

_log = logging.getLogger(__name__)

_PAUSE_S = 0.2
"""Between two attempts to fill a replica."""


class Savepoints:
    """The state of a role's replicas, as a part of the state that the trainer's ranks give to the Session.

    Replica ``i`` is asked by rank ``i % world size``.
    """

    def __init__(
        self,
        role: str,
        fetch: Callable[[int, str], Any],
        fill: Callable[[int, str, Any], None],
        *,
        replicas: int,
        timeout_s: float = 60.0,
    ) -> None:
        """Prepare.

        Args:
            role: whose replicas.
            fetch: given a replica's index and address (``host:port``), returns its state: tensors, numbers, containers
                of them; None: it has just started and holds nothing. Raises OSError while it cannot be reached.
            fill: given index, address and a state, has the replica go on from that. May be called twice for one state.
                Raises OSError while it cannot be reached.
            replicas: how many have a state, from index 0 on.
            timeout_s: longest wait of ``load_state_dict`` for one replica, in seconds.

        Raises:
            ValueError: ``replicas`` is less than 1.
        """
        if replicas < 1:
            raise ValueError(f"Savepoints({role!r}, replicas={replicas}): expected 1 or more")
        self._role, self._fetch, self._fill = role, fetch, fill
        self._replicas, self._timeout_s = replicas, timeout_s
        self._newest: dict[int, Any] = {}

    @property
    def part(self) -> Part:
        """This, as a part of the state given to the Session: at another number of ranks others ask the replicas."""
        from holdfast.session.part import Part  # noqa: PLC0415  (torch)

        return Part(self, merge=self._merge, split=self._split)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each replica that this rank asks, by index; None: it never held anything.

        A replica that has started again is filled first. To a restore, which only looks, one that cannot be reached
        has no state.

        Raises:
            PartAwayError: a replica cannot be reached now. The Session counts the step as not saved.
        """
        from holdfast.session.restoring import is_restoring  # noqa: PLC0415  (torch)

        looks_only = is_restoring()
        return {str(index): self._state_of(index, looks_only) for index in self._mine()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each replica that this rank asks what it held; wait for those that are not there yet.

        Raises:
            CheckpointError: a replica was not there in time, or the state is of another number of replicas.
        """
        self._refuse_others({int(index) for index in state})
        wanted = {int(index): held for index, held in state.items() if held is not None}
        for index in self._mine():
            if index in wanted:
                self._newest[index] = wanted[index]
                self._filled_in_time(index)

    def refill(self, index: int) -> bool:
        """Give a replica that has started again what it held at the newest savepoint; return whether there is one.

        For a script that sees by itself that a replica is empty, between two savepoints.

        Raises:
            OSError: it cannot be reached.
        """
        if index not in self._newest:
            return False
        self._fill(index, self._address(index), self._newest[index])
        return True

    def _refuse_others(self, saved: set[int]) -> None:
        mine = set(self._mine())
        for has, others in (("the state", saved - mine), ("no state", mine - saved)):
            if others:
                names = ", ".join(map(str, sorted(others)))
                raise CheckpointError(
                    f"role {self._role}: the checkpoint has {has} of replica {names}, and the script asks for "
                    f"{self._replicas} (replicas=...): start as many as saved it"
                )

    def _mine(self) -> range:
        rank, world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        return range(rank, self._replicas, world)

    def _state_of(self, index: int, looks_only: bool) -> Any:
        try:
            state = self._fetch(index, self._address(index))
            if state is None and self.refill(index):
                _log.warning("role %s: replica %d was empty, and is filled again", self._role, index)
                return self._newest[index]
        except OSError as error:
            if looks_only:
                return self._newest.get(index)
            raise PartAwayError(
                f"role {self._role}: replica {index} cannot be asked for its state ({error}): the step is not saved"
            ) from error
        if state is not None:
            self._newest[index] = state
        return state

    def _filled_in_time(self, index: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self.refill(index)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"role {self._role}: replica {index} could not be given its state within "
                        f"{self._timeout_s:g} s ({error})"
                    ) from error
                time.sleep(_PAUSE_S)
            else:
                return

    def _address(self, index: int) -> str:
        if (address := roles.addresses(self._role).get(index)) is None:
            raise ConnectionRefusedError(f"replica {index} of role {self._role} has announced no address")
        return address

    @staticmethod
    def _merge(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the states of all replicas, from those that each rank asked."""
        return {index: held for state in states for index, held in state.items()}

    def _split(self, whole: Mapping[str, Any], rank: int, world_size: int) -> dict[str, Any]:
        return {index: held for index, held in whole.items() if int(index) % world_size == rank}
