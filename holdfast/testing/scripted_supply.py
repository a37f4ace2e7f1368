"""The driver of a scripted cluster, which evicts for certain, and its object store, which holds manifests alone."""

from __future__ import annotations

from holdfast.drivers.base import Supplied
from holdfast.errors import UnavailableError, UnknownError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.machine import Scope
from holdfast.storage.checkpoints.remote import manifests
from holdfast.testing.world import World


class ScriptedStore:
    """An object store that holds the manifests of the world's checkpoints, when it answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._marks: dict[str, bytes] = {}

    def folders(self, prefix: str) -> list[str]:
        return list(self._checkpoints())

    def exists(self, key: str) -> bool:
        return key in self._objects()

    def list(self, prefix: str) -> list[str]:
        return [key for key in self._objects() if key.startswith(prefix)]

    def get(self, key: str) -> bytes:
        found = self._objects().get(key)
        if found is None:
            raise UnknownError(f"no object {key}")
        return found

    def put(self, key: str, body: bytes) -> None:
        self._checkpoints()
        self._marks[key] = body

    def _checkpoints(self) -> dict[str, RemoteCheckpoint]:
        world = self._world
        if world.clock.now() - world.began_at < world.s3_away_s:
            raise UnavailableError("S3 at http://s3: connection refused")
        return {each.key: each for each in map(world.checkpoint, world.in_s3)}

    def _objects(self) -> dict[str, bytes]:
        found = {
            f"{key}{manifests.MANIFEST}": manifests.Manifest.model_validate(
                each.model_dump(include={"job", "step", "epoch", "world_size", "saved_at", "nbytes"})
            )
            .model_dump_json()
            .encode()
            for key, each in self._checkpoints().items()
        }
        return found | self._marks


class ScriptedDriver:
    """Supplies nothing, evicts for certain."""

    name = "scripted"

    def __init__(self, world: World) -> None:
        self._world = world

    def machines(self) -> list[Supplied]:
        gone = {name for name, _ in self._world.evicted} | self._world.dead
        return [
            Supplied(name=machine.name, alive=machine.name not in gone)
            for machine in self._world.ledger.machines()
        ]

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        self._world.evicted.append((machine, scope))

    def provision(self, n: int, group: str = "") -> list[str]:
        return []

    def withdraw(self) -> None:
        raise AssertionError("no scenario takes the site down")

    def release(self, machine: str, incarnation: str = "") -> None:
        raise AssertionError("no scenario releases a machine")

    def retire(self, machine: str, incarnation: str = "") -> None:
        raise AssertionError("no scenario retires a machine")
