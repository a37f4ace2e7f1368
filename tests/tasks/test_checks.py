"""Answers of agents to checks: those that accuse a machine, and those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError, RefusedError, SettingsError, SilentError, UnavailableError
from holdfast.models.agent import Check, Diagnose, OpenRendezvous, Rendezvous
from holdfast.models.alert import Finding
from holdfast.models.machine import Machine, MachineState
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.policies.diagnose import network_environment
from holdfast.policies.diagnose.verdicts import INSIDE, judge
from holdfast.settings import Settings
from holdfast.tasks import checks


@pytest.mark.parametrize("tier", sorted(INSIDE))
def test_an_agent_that_does_not_know_a_check_accuses_no_machine(tier: str) -> None:
    """While a fleet is upgraded, agents are one release older than who asks them."""
    refused = SettingsError(f"diagnose: check = {tier!r}: expected one of inspect, matmul.")
    (finding,) = checks.findings(tier, "m1", refused)
    assert finding.ok
    assert finding.value is None
    assert finding.detail.startswith("not tested: ")
    assert judge([finding], 1.5).suspects == ()


async def test_collectives_take_the_jobs_way_over_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside machines and between them, with as many GPUs as it has ranks; other checks get none of its variables."""
    sent: list[Diagnose] = []

    class Agent:
        async def open_rendezvous(self, _command: OpenRendezvous) -> Rendezvous:
            return Rendezvous(host="127.0.0.1", port=1)

        async def diagnose(self, command: Diagnose) -> list[Finding]:
            sent.append(command)
            return []

    async def ask(
        _ctx: Context, machines: Iterable[Machine], command: Callable[..., Any], **_: int
    ) -> dict[str, Any]:
        return {each.name: await command(Agent(), each) for each in machines}

    monkeypatch.setattr(fleet, "ask", ask)
    ctx = Context(Settings(home=tmp_path))
    env = {"NCCL_IB_HCA": "mlx5_1", "NCCL_DEBUG_FILE": "/tmp/nccl", "HF_TOKEN": "secret"}
    subject = checks.Subject(ctx, "gpt", processes=4, env=env)
    machines = [Machine(name=name, incarnation="i1", state=MachineState.ACTIVE) for name in ("m0", "m1")]
    for tier in (Check.ALL_TO_ALL, Check.MATMUL):
        await checks.each(subject, machines[:1], tier)
    await checks.neighbours(subject, machines)
    assert [(each.check, each.processes) for each in sent] == [
        (Check.ALL_TO_ALL, 4),
        (Check.MATMUL, 4),
        (Check.ALL_GATHER, 4),
        (Check.ALL_GATHER, 4),
    ]
    assert [each.env for each in sent] == [{"NCCL_IB_HCA": "mlx5_1"}, {}, *[{"NCCL_IB_HCA": "mlx5_1"}] * 2]


@pytest.mark.parametrize(
    ("name", "passed"),
    [
        ("NCCL_SOCKET_IFNAME", True),
        ("NCCL_NET", True),
        ("GLOO_SOCKET_IFNAME", True),
        ("FI_PROVIDER", True),
        ("UCX_NET_DEVICES", True),
        ("NCCL_COMM_ID", False),
        ("NCCL_DEBUG", False),
        ("NCCL_TOPO_DUMP_FILE", False),
        ("UCX_LOG_FILE", False),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", False),
        ("PATH", False),
    ],
)
def test_variables_that_choose_the_way(name: str, passed: bool) -> None:
    """Neither where the job's ranks meet, nor files that they write."""
    assert bool(network_environment.of_job({name: "x"})) is passed


@pytest.mark.parametrize(
    ("error", "sure"), [(UnavailableError("no answer"), True), (RefusedError("busy"), False)]
)
def test_one_that_does_not_answer_or_refuses_is_a_finding(error: HoldfastError, sure: bool) -> None:
    """As before."""
    (finding,) = checks.findings(Check.MATMUL, "m1", error)
    assert (finding.ok, finding.sure) == (False, sure)
    assert judge([finding]).suspects == ("m1",)


def test_of_many_that_send_no_answer_none_is_accused() -> None:
    """The network of the one who asks may be cut; it must not empty a small job's machines."""
    subject = checks.Subject(None, "gpt", most_silent=1)  # type: ignore[arg-type]
    quiet = SilentError("no answer")
    answers: list[tuple[str, checks.Answer]] = [("m1", quiet), ("m2", quiet), ("m3", RefusedError("busy"))]
    found = checks._found(subject, Check.MATMUL, answers)
    assert [finding.ok for finding in found] == [True, True, False]
    assert found[0].detail.startswith("not tested: 2 machines send no answer")
    assert judge(found).suspects == ("m3",)
    assert judge(checks._found(subject, Check.MATMUL, answers[1:2])).suspects == ("m2",)


@pytest.mark.parametrize("lives", [True, False], ids=["busy", "silent"])
async def test_a_machine_whose_result_is_late_and_that_answers_is_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """It was busy. One that sends its state neither is as good as gone."""
    asked: list[str] = []

    class Agent:
        async def diagnose(self, _command: Diagnose) -> list[Finding]:
            asked.append("check")
            raise SilentError("no answer: ReadTimeout")

        async def state(self, *, shards: bool) -> str:
            assert not shards
            asked.append("state")
            if not lives:
                raise SilentError("no answer: ReadTimeout")
            return "busy"

    async def ask(
        _ctx: Context, machines: Iterable[Machine], command: Callable[..., Any], **_: int
    ) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for each in machines:
            try:
                answers[each.name] = await command(Agent(), each)
            except SilentError as error:
                answers[each.name] = error
        return answers

    monkeypatch.setattr(fleet, "ask", ask)
    machine = Machine(name="m0", incarnation="i1", state=MachineState.ACTIVE)
    (found,) = await checks.each(checks.Subject(Context(Settings(home=tmp_path)), "gpt"), [machine], "matmul")
    assert asked == ["check", "state"]
    assert (found.ok, found.sure) == ((True, False) if lives else (False, True))
    assert found.detail.startswith("not tested: ") is lives
