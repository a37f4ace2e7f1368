"""Scripts of ranks without torch, and the command that ends them."""

from __future__ import annotations

from holdfast.models.agent import Fence
from tests.agent.site import AgentProcess

SLEEP = "import time\ntime.sleep(600)\n"
STEPS = """
import json, os, time
from holdfast.agent.wire import Control, Sender
sender = Sender(os.environ["HOLDFAST_AGENT_SOCKET"])
control = Control(os.environ["HOLDFAST_CONTROL"])
rank, epoch = int(os.environ["RANK"]), int(os.environ["HOLDFAST_EPOCH"])
def say(t, **fields):
    while not sender.send({"t": t, "rank": rank, "epoch": epoch, **fields}):
        time.sleep(0.01)  # the agent is behind, and a session would give it up: tests count what it hears
def step(n, loss=1.0):
    say("step", step=n, at=time.time(), s=0.01, loss=loss, grad_norm=None, phases={})
"""


def fence(agent: AgentProcess, job: str, epoch: int = 1) -> Fence:
    return Fence(job=job, epoch=epoch, incarnation=agent.incarnation)
