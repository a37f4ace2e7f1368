"""The CLI with several gateways, of which one leads."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from holdfast import redact
from holdfast.client.gateway import Gateway
from holdfast.errors import SettingsError, UnavailableError
from holdfast.models.job import Job, JobSpec, JobState

JOB = Job(
    spec=JobSpec(name="gpt", script="train.py", machines=1, ranks_per_machine=1),
    state=JobState.RUNNING,
    epoch=1,
    code_version="v1",
    machines=("m0",),
    submitted_at=1.0,
).model_dump(mode="json")


def answer(request: httpx.Request) -> httpx.Response:
    if request.url.host == "away":
        raise httpx.ConnectError("refused")
    if request.url.host == "standby":
        return httpx.Response(503, json={"error": "UnavailableError", "message": "stands by"})
    return httpx.Response(200, json=[])


def test_the_one_that_leads_is_found_and_kept() -> None:
    """Those that are away or stand by are passed over."""
    with Gateway(
        "http://away,http://standby,http://leads", "s", Path("secret"), httpx.MockTransport(answer)
    ) as gateway:
        assert gateway.jobs() == []
        assert gateway.url == "http://leads"
        assert redact.page(gateway.url) == "http://leads/ui/"


def test_when_none_leads_the_error_has_it() -> None:
    """By the last one's words."""
    urls = "http://away,http://standby"
    with (
        Gateway(urls, "s", Path("secret"), httpx.MockTransport(answer)) as gateway,
        pytest.raises(UnavailableError, match="stands by"),
    ):
        gateway.jobs()


@pytest.mark.parametrize("act", ["jobs", "stop"])
def test_what_may_have_been_done_is_not_asked_of_the_next_one(act: str) -> None:
    """Reading is; an act whose answer was lost is the caller's to repeat."""
    asked: list[str] = []

    def slow_then_fine(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "slow":
            raise httpx.ReadTimeout("no answer in time")
        return httpx.Response(200, json=[])

    transport = httpx.MockTransport(slow_then_fine)
    with Gateway("http://slow,http://leads", "s", Path("secret"), transport) as gateway:
        if act == "jobs":
            assert gateway.jobs() == []
            assert asked == ["slow", "leads"]
        else:
            with pytest.raises(UnavailableError, match="may have done it all the same"):
                gateway.command("gpt", "stop")
            assert asked == ["slow"]


def of_another_version(answer: object) -> Gateway:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    return Gateway("http://leads", "s", Path("secret"), transport)


def test_fields_of_a_newer_gateway_are_left_out() -> None:
    """At any depth: a workstation is brought up to date last."""
    newer = {**JOB, "mood": "good", "spec": {**JOB["spec"], "checkpoint": {"s3_every_steps": 5, "colour": 1}}}
    with of_another_version([newer]) as gateway:
        (job,) = gateway.jobs()
    assert job.spec.checkpoint.s3_every_steps == 5


def test_an_answer_that_cannot_be_read_is_one_message() -> None:
    """It names the field, the value, and which version is asked for."""
    with (
        of_another_version({**JOB, "state": "frozen"}) as gateway,
        pytest.raises(SettingsError, match=r"Job\.state = 'frozen'.*install the gateway's version"),
    ):
        gateway.job("gpt")
