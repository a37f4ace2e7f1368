"""Waiting for machines that start: what it costs the engine that supplies them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from holdfast import drivers, secret
from holdfast.deployments.local import machines
from holdfast.drivers.base import Supplied
from holdfast.errors import UnavailableError
from holdfast.settings import Settings


class Engine:
    """As the part of a driver that is asked, at the price of ``look_s`` per look."""

    name = "slow"

    def __init__(self, look_s: float, *, alive: bool = True) -> None:
        self.look_s, self.alive, self.looks = look_s, alive, 0

    def machines(self) -> list[Supplied]:
        self.looks += 1
        time.sleep(self.look_s)
        return [Supplied(name="n1", alive=self.alive and self.looks > 1, detail="d")]

    def provision(self, n: int) -> list[str]:
        return ["n1"]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(machines, "_known", lambda *_: {})
    secret.create(tmp_path / "secret")
    return Settings(home=tmp_path, driver="slurm", up_s=0.75)


def test_engine_is_asked_a_small_part_of_the_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld and API servers have others to answer, and limit who asks too often."""
    engine = Engine(0.05)
    monkeypatch.setattr(drivers, "from_settings", lambda _: engine)
    with pytest.raises(UnavailableError, match="did not register"):
        machines.have(settings, 1, lambda _: None, threading.Event())
    assert engine.looks <= 7, "the first, one for the error, and one in half a second"


def test_machine_that_dies_while_it_starts_is_reported_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the end of the time that it has."""
    monkeypatch.setattr(drivers, "from_settings", lambda _: Engine(0.0, alive=False))
    patient = settings.model_copy(update={"up_s": 300.0})
    with pytest.raises(UnavailableError, match="slow says: d"):
        machines.have(patient, 1, lambda _: None, threading.Event())
