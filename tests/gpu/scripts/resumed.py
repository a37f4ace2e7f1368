"""Train small models and save each step, or go on from what was saved: ``resumed first|second FOLDER KIND...``.

Prints a line of JSON: for each kind the digests of its end, or an error.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.gpu.saving import agent_in_memory, device, say
from tests.gpu.trainings import TRAININGS, digests
from tests.session.harness import FakeAgent
from tests.session.small import seed, session_of

STEPS, RESTORED = 6, 3


def first(kind: str, agent: FakeAgent, kept: Path) -> dict[str, Any]:
    """Train without a session, then with one; keep the shard of one step."""
    seed(1)
    plain = TRAININGS[kind](device())
    for step in range(1, STEPS + 1):
        plain.step(step)
    expected = digests(plain.state)
    seed(1)
    training, session = TRAININGS[kind](device()), session_of(agent)
    assert session.restore(training.state) == 0
    for step in range(1, STEPS + 1):
        training.step(step)
        session.step(step)
        session.checkpoint(training.state)
        assert session.flush()
        if step == RESTORED:
            shutil.copyfile(agent.shard(0, step), kept)
    counts = session.counts
    session.close(10)
    return {"plain": expected, "saved": digests(training.state), "counts": counts.saved}


def second(kind: str, agent: FakeAgent, kept: Path) -> dict[str, Any]:
    """Go on from that shard, saving again."""
    seed(99)
    training, session = TRAININGS[kind](device()), session_of(agent, (RESTORED, kept))
    assert session.restore(training.state) == RESTORED
    for step in range(RESTORED + 1, STEPS + 1):
        training.step(step)
        session.step(step)
        session.checkpoint(training.state)
    assert session.flush()
    counts = session.counts
    session.close(10)
    return {"resumed": digests(training.state), "counts": counts.saved}


def main(part: str, folder: Path, *kinds: str) -> None:
    """Do one part of all kinds."""
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for kind in kinds:
        with agent_in_memory() as agent:
            agent.epoch = 0 if part == "first" else 1
            try:
                found[kind] = (first if part == "first" else second)(kind, agent, folder / f"{kind}.shard")
            except Exception:
                found[kind] = {"error": traceback.format_exc()}
    say(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
