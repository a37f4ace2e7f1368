"""Environment of the ranks of a run: the job file's, torchrun's, and what the Session reads."""

from __future__ import annotations

import os
from typing import Any

from holdfast.agent import wire
from holdfast.agent.diagnostics import meeting
from holdfast.models.agent import Start
from holdfast.models.environment import OF_AGENTS, OF_RANKS


def of_job(start: Start) -> dict[str, str]:
    """Return the job file's part.

    Without the agent's own variables, which a job may have that was recorded before they were refused.
    """
    return {name: value for name, value in start.env.items() if name not in OF_RANKS | OF_AGENTS}


def of_session(start: Start, *, machine: str, socket: str, shards: str) -> dict[str, str]:
    """Return what the Session of every rank reads.

    Args:
        start: the order.
        machine: name of this one.
        socket: path at which the agent takes the ranks' reports.
        shards: folder of this machine's own shards of the job.
    """
    env: dict[str, Any] = {
        wire.ENV_JOB: start.job,
        wire.ENV_EPOCH: start.epoch,
        wire.ENV_MACHINE: machine,
        wire.ENV_SOCKET: socket,
        wire.ENV_SHARDS: shards,
        wire.ENV_S3_EVERY: start.s3_every_steps,
        wire.ENV_SKIP_STEPS: ",".join(map(str, start.skip_steps)),
        wire.ENV_MEMORY_EVERY: start.memory_every_steps,
        wire.ENV_MAX_OVERHEAD: start.max_overhead or "",
        wire.ENV_COPIES: start.copies.model_dump_json(),
        wire.ENV_PEER: "1" if start.peer and start.replay is None else "0",
    }
    if start.replay is not None:
        env[wire.ENV_REPLAY_STEPS] = start.replay.steps
    return {name: str(value) for name, value in env.items()}


def torchrun(start: Start, rank: int) -> dict[str, str]:
    """Return the environment that torchrun gives a worker (torch 2.13, ``torch/distributed/elastic/agent``)."""
    local = start.ranks.index(rank)
    per_machine = len(start.ranks)
    host = start.rendezvous.host
    env = {
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": start.world_size,
        "LOCAL_WORLD_SIZE": per_machine,
        "GROUP_RANK": rank // per_machine,
        "GROUP_WORLD_SIZE": max(1, start.world_size // per_machine),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": start.world_size,
        "MASTER_ADDR": host,
        "MASTER_PORT": start.rendezvous.port,
        "TORCHELASTIC_RUN_ID": start.job,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        # The store is there already; ranks are its clients, whatever their number.
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    if per_machine > 1:
        env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    if host.startswith("127."):
        env[meeting.INTERFACE] = "lo"  # gloo would resolve the host's name, which may be slow or absent
    return {name: str(value) for name, value in env.items()}
