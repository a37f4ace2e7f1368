"""Nodes: kept out of service while a machine on them is evicted, given back when it is repaired."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Api, ConflictError, Object, patiently
from holdfast.errors import UnknownError
from holdfast.models.machine import Scope

_PATH = "/api/v1/nodes"
_RACE_S = 30.0


class Nodes:
    """The cluster's nodes. Kubelets and controllers write them too: every change is of the version that was read."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def all(self) -> dict[str, Object]:
        """Return all nodes by name."""
        return {each["metadata"]["name"]: each for each in self._api.get(_PATH)["items"]}

    def get(self, name: str) -> Object | None:
        """Return one node; None: there is none of that name (any more)."""
        try:
            return self._api.get(f"{_PATH}/{name}")
        except UnknownError:
            return None

    def take_out(self, name: str, machine: str, scope: Scope) -> None:
        """Keep others off the node; harmless when it is gone."""
        self._change(name, "", lambda node: bodies.node_taken_out(node, machine, scope))

    def give_back(self, name: str, uid: str, machine: str) -> None:
        """Undo :meth:`take_out`; a node that was replaced meanwhile is left alone."""
        self._change(name, uid, lambda node: bodies.node_given_back(node, machine))

    def _change(self, name: str, uid: str, patch: Callable[[Object], Object | None]) -> None:
        def once() -> None:
            node = self.get(name)
            if node is None or (uid and node["metadata"]["uid"] != uid):
                return
            if (body := patch(node)) is not None:
                self._api.patch(f"{_PATH}/{name}", body)

        patiently(once, ConflictError, timeout_s=_RACE_S)
