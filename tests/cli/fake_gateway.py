"""A gateway that answers from memory, in the real one's words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from holdfast import secret
from holdfast.errors import HoldfastError, NoStandbyError, SettingsError, UnauthorizedError, UnknownError
from holdfast.models.alert import Incident
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.models.wait import Wait
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import spare_pool
from holdfast.policies.restore import checkpoint_cost
from holdfast.policies.restore.unsaved import Unsaved


class FakeGateway:
    """``calls`` are the requests that change something, ``asked`` the query of the newest; tests may change lists."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.transport = httpx.MockTransport(self._answer)
        self.calls: list[tuple[str, Any]] = []
        self.asked: dict[str, str] = {}
        self.jobs: dict[str, Job] = {}
        self.machines = {
            name: Machine(name=name, state=MachineState.STANDBY, incarnation="abc", address="127.0.0.1:1")
            for name in ("m0", "m1")
        }
        self.incidents: list[Incident] = []
        self.step = 0
        self.rank_nbytes: int | None = 64 << 20
        self.lost_to = ["job_hang"]
        self.unsaved: list[Unsaved] = []
        self.asks: list[dict[str, Any]] = []
        self.waits: list[Wait] = []
        self.groups: tuple[str, ...] = ("",)
        self.on_submit: Callable[[Job], None] = lambda job: None

    def add_job(self, spec: JobSpec, state: JobState = JobState.RUNNING) -> Job:
        job = Job(spec=spec, state=state, epoch=1, code_version="v1", machines=("m0",), submitted_at=100.0)
        self.jobs[spec.name] = job
        return job

    def _answer(self, request: httpx.Request) -> httpx.Response:
        try:
            if not secret.matches(request.headers.get("Authorization"), self.token):
                raise UnauthorizedError("missing or wrong secret.")
            body = json.loads(request.content) if request.content else None
            self.asked = dict(request.url.params)
            if request.method == "POST":
                self.calls.append((request.url.path, body))
            return httpx.Response(200, json=self._route(request, body))
        except HoldfastError as error:
            return httpx.Response(error.status, json={"error": type(error).__name__, "message": str(error)})

    def _route(self, request: httpx.Request, body: Any) -> Any:  # noqa: PLR0911, PLR0912  (a table)
        match [request.method, *request.url.path.strip("/").split("/")[1:]]:
            case ["GET", "status"]:
                return self._status()
            case ["GET", "jobs"]:
                return [job.model_dump(mode="json") for job in self.jobs.values()]
            case ["POST", "jobs"]:
                return self._submit(JobSpec.model_validate(body["spec"])).model_dump(mode="json")
            case ["POST", "jobs", name, "roles", _, "scale"] if name in self.jobs:
                return self.jobs[name].model_dump(mode="json")
            case ["POST", "jobs", name, "update" | "move"] if name in self.jobs:
                return {"outcome": "opened", "incident": f"{name}-1"}
            case ["GET" | "POST", "jobs", name, *_]:
                if name not in self.jobs:
                    raise UnknownError(f"job {name!r} is unknown; jobs: {', '.join(self.jobs) or 'none'}.")
                answer = self.jobs[name].model_dump(mode="json")
                if not request.url.path.endswith("/history"):
                    return answer
                (status,) = [row for row in self._status()["jobs"] if row["name"] == name]
                return {"job": answer, "epochs": [], "status": status}
            case ["GET", "machines"]:
                return [machine.model_dump(mode="json") for machine in self.machines.values()]
            case ["POST", "machines", name, _]:
                if name not in self.machines:
                    raise UnknownError(f"machine {name!r} is unknown; machines: {', '.join(self.machines)}.")
                return {"outcome": "cordoned", "message": f"machine {name} is out of service"}
            case ["GET", "incidents" | "checkpoints"] if (
                asked := request.url.params.get("job")
            ) not in self._known():
                raise UnknownError(f"job {asked!r} is unknown; jobs: {', '.join(self.jobs) or 'none'}.")
            case ["GET", "incidents"] if request.url.params.get("class") == "nonsense":
                raise SettingsError("query.class = 'nonsense': Input should be 'job_crash' or 'job_hang'")
            case ["GET", "incidents"]:
                return [incident.model_dump(mode="json") for incident in self.incidents]
            case ["GET", "incidents", name]:
                found = next((row for row in self.incidents if row.id == name), None)
                if found is None:
                    raise UnknownError(f"incident {name!r} is unknown.")
                ask = next((each for each in self.asks if each["incident"] == name), None)
                known = {"incident": found.model_dump(mode="json"), "ask": ask}
                return known | {"actions": [_ACTION], "alerts": []}
            case ["POST", "incidents", name, "approve"] if name in {row.id for row in self.incidents}:
                return self.incidents[0].model_dump(mode="json")
            case ["POST", "incidents", name, _]:
                raise UnknownError(f"incident {name!r} is unknown.")
            case ["GET", "pool"]:
                return self._pool()
            case ["GET", "checkpoints"]:
                return [_CHECKPOINT]
        raise UnknownError(f"no route {request.url.path}")

    def _pool(self) -> dict[str, Any]:
        policy = Policy.load().spare_pool
        plans = [
            spare_pool.plan(
                spare_pool.GroupHistory(group=name, machines=4, failures=2, machine_days=100.0), policy
            )
            for name in self.groups
        ]
        return {
            "target": 2,
            "reason": "P99 of 4 machines",
            "standbys": ["m4", "m5"],
            "plans": [plan.model_dump(mode="json") for plan in plans],
            "policy": policy.model_dump(mode="json"),
        }

    def _known(self) -> set[str | None]:
        return {None, *self.jobs}

    def _submit(self, spec: JobSpec) -> Job:
        free = sum(machine.state is MachineState.STANDBY for machine in self.machines.values())
        if free < spec.machines:
            raise NoStandbyError(f"job {spec.name!r} needs {spec.machines} machines, {free} are on standby.")
        job = self.add_job(spec)
        self.on_submit(job)
        return job

    def _status(self) -> dict[str, Any]:
        rank = {"rank": 0, "machine": "m0", "pid": 4242, "step": self.step}
        return {
            "jobs": [
                {
                    "name": name,
                    "state": job.state.value,
                    "epoch": job.epoch,
                    "step": self.step,
                    "ettr": 0.97,
                    "ettr_window": 0.5,
                    "checkpoint": checkpoint_cost.cost(
                        job.spec, crosses_groups=False, rank_nbytes=self.rank_nbytes
                    ).sums(),
                    "lost_by_phase_s": {"undetected": 90.0, "pausing": 1.0},
                    "lost": [
                        {"phase": "undetected", "incident_class": each, "seconds": 90.0 + number}
                        for number, each in enumerate(self.lost_to)
                    ],
                    "code_version": job.code_version,
                    "machines": list(job.machines),
                    "ranks": [rank],
                    "unsaved": [each.model_dump(mode="json") for each in self.unsaved],
                }
                for name, job in self.jobs.items()
            ],
            "machines": [machine.model_dump(mode="json") for machine in self.machines.values()],
            "incidents": [],
            "asks": self.asks,
            "waits": [each.model_dump(mode="json") for each in self.waits],
            "pool": {},
            "prefect": {},
        }


_ACTION = {
    "incident_id": "gpt-1",
    "key": "evict:m0",
    "kind": "evict",
    "intent": {"machine": "m0"},
    "attempt": 1,
    "state": "done",
    "result": {"alive": False},
    "begun_at": 1000.5,
    "done_at": 1001.0,
}
_CHECKPOINT = {
    "job": "gpt",
    "step": 20,
    "epoch": 1,
    "world_size": 2,
    "key": "gpt/checkpoints/step-0000000020-e1",
    "nbytes": 1000,
}
