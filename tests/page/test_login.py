"""Access to the status page, and the limits of an attacker's page with a person's login."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from holdfast.deployments.gateway.page.session import CSRF_HEADER, MAY, SAFE_METHODS, Sessions
from holdfast.models.history import BY_HEADER, ActionState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.secret import Keys
from holdfast.testing.gateway_kit import JOB, SECRET, Kit

SPEC = {"name": "new", "script": "train.py", "machines": 2, "ranks_per_machine": 2}


def browser(kit: Kit) -> httpx.AsyncClient:
    """A client without the secret, which keeps cookies."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=kit.app), base_url="http://gateway")


async def login(client: httpx.AsyncClient, by: str = "ada") -> str:
    """Log in; the token against forgery."""
    answer = await client.post("/ui/login", json={"secret": SECRET, "by": by})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["csrf"])


async def test_the_page_is_open_and_what_it_shows_is_not(kit: Kit) -> None:
    """Files hold nothing secret; every view asks for the login."""
    async with browser(kit) as client:
        assert (await client.get("/", follow_redirects=False)).headers["location"] == "/ui/"
        assert (await client.get("/ui/")).status_code == 200
        for path in ("/v1/page/overview", "/v1/status", "/ui/session", "/v1/by-hand", "/metrics"):
            assert (await client.get(path)).status_code == 401, path


@pytest.mark.parametrize("secret", ["wrong", SECRET + "x", " "])
async def test_wrong_secret_gives_no_cookie_and_is_counted(kit: Kit, secret: str) -> None:
    """No guess goes unseen."""
    async with browser(kit) as client:
        answer = await client.post("/ui/login", json={"secret": secret, "by": "eve"})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    assert kit.metric("unauthorized_total", route="ui") == 1


async def test_a_stranger_has_no_large_body_read(kit: Kit) -> None:
    """A login is read before the client has shown the secret, and a thousand of 4 MiB would be the host's memory."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b" " * 4096

    async with browser(kit) as client:
        for content in (b" " * 20_000, chunks()):
            answer = await client.post("/ui/login", content=content)
            assert answer.status_code == 413
            assert "larger than 16384 bytes" in answer.json()["message"]
        await login(client, "x" * 100)


async def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(kit: Kit) -> None:
    """HttpOnly and SameSite=Strict, and it does not carry the secret."""
    async with browser(kit) as client:
        answer = await client.post("/ui/login", json={"secret": SECRET, "by": "ada"})
        cookie = answer.headers["set-cookie"]
        assert re.search("httponly", cookie, re.IGNORECASE)
        assert re.search("samesite=strict", cookie, re.IGNORECASE)
        assert SECRET not in cookie
        assert (await client.get("/v1/page/overview")).status_code == 200
        await client.post("/ui/logout", headers={CSRF_HEADER: answer.json()["csrf"]})
        assert (await client.get("/v1/page/overview")).status_code == 401


async def test_acts_need_the_token_of_the_login(kit: Kit) -> None:
    """A form on another site's page could send the cookie; it cannot know the token."""
    await kit.register("m0")
    async with browser(kit) as client:
        csrf = await login(client)
        for headers in ({}, {CSRF_HEADER: "guess"}):
            answer = await client.post("/v1/machines/m0/evict", json={"reason": "x"}, headers=headers)
            assert answer.status_code == 403
            assert answer.json()["error"] == "ForgedError"
        assert kit.ledger.by_hand("m0") == []
        assert kit.ledger.machine("m0").state is MachineState.STANDBY
        answer = await client.post("/v1/machines/m0/evict", json={"reason": "x"}, headers={CSRF_HEADER: csrf})
        assert answer.status_code == 200
    assert kit.ledger.machine("m0").state is MachineState.CORDONED


async def test_a_login_does_not_speak_for_machines(kit: Kit) -> None:
    """Heartbeats and alerts come with the secret only."""
    async with browser(kit) as client:
        headers = {CSRF_HEADER: await login(client)}
        for path in ("/v1/agents/register", "/v1/alerts", "/v1/alerts/alertmanager"):
            assert (await client.post(path, json={}, headers=headers)).status_code == 401, path


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {"spec": SPEC, "code_version": "v1"}),
        ("/v1/jobs/gpt/stop", None),
        ("/v1/jobs/gpt/pause", {}),
        ("/v1/jobs/gpt/resume", {}),
        ("/v1/jobs/gpt/update", {"version": "v2"}),
        ("/v1/machines/m0/evict/../../../jobs/gpt/stop", None),
    ],
)
async def test_a_login_may_do_what_the_page_does_and_no_more(
    kit: Kit, path: str, body: dict[str, object] | None
) -> None:
    """A stolen cookie, with its token, starts no code and stops no job."""
    await kit.running_job()
    async with browser(kit) as client:
        headers = {CSRF_HEADER: await login(client)}
        answer = await client.post(path, json=body, headers=headers)
        assert answer.status_code == 403, answer.text
        assert answer.json()["error"] == "NotByLoginError"
    assert kit.ledger.jobs() == [kit.ledger.job(JOB)]
    assert kit.ledger.job(JOB).state is JobState.RUNNING
    assert {entry.act for entry in kit.ledger.by_hand()} == {"login"}


async def test_every_route_that_changes_something_is_closed_to_a_login_or_listed(kit: Kit) -> None:
    """A route that is added later is closed until a developer opens it."""
    paths = {
        path
        for path, methods in kit.app.openapi()["paths"].items()
        if {method.upper() for method in methods} - SAFE_METHODS and path != "/ui/login"
    }
    assert len(paths) > 10
    open_ones = {path for path in paths if MAY.fullmatch(path)}
    assert open_ones == {
        "/v1/machines/{name}/evict",
        "/v1/machines/{name}/release",
        "/v1/incidents/{incident_id}/approve",
        "/ui/logout",
    }


async def test_a_cookie_is_of_no_person_after_logout(kit: Kit) -> None:
    """A copy of it too, in this gateway and in the one that leads after it; other logins of the same person stay."""
    async with browser(kit) as client, browser(kit) as other:
        headers = {CSRF_HEADER: await login(client)}
        await login(other)
        copied = dict(client.cookies)
        assert (await client.post("/ui/logout", headers=headers)).status_code == 200
        client.cookies.update(copied)
        assert (await client.get("/v1/page/overview")).status_code == 401
        assert (await client.post("/v1/machines/m0/evict", json={}, headers=headers)).status_code == 401
        assert (await other.get("/v1/page/overview")).status_code == 200
        kept = dict(other.cookies)
    await kit.restart()
    for cookies, status in ((copied, 401), (kept, 200)):
        async with browser(kit) as later:
            later.cookies.update(cookies)
            assert (await later.get("/v1/page/overview")).status_code == status


async def test_logout_needs_the_token(kit: Kit) -> None:
    """Another site's page can log no one out."""
    async with browser(kit) as client:
        await login(client)
        assert (await client.post("/ui/logout")).status_code == 403
        assert (await client.get("/v1/page/overview")).status_code == 200


async def test_logins_and_logouts_are_in_the_audit(kit: Kit) -> None:
    """With person, time and address."""
    async with browser(kit) as client:
        headers = {CSRF_HEADER: await login(client)}
        await client.post("/ui/logout", headers=headers)
    out, into = kit.ledger.by_hand()
    assert (into.act, into.by, into.via, into.state) == ("login", "ada", "page", ActionState.DONE)
    assert (out.act, out.by, out.target) == ("logout", "ada", into.target)
    assert into.source == out.source == "127.0.0.1"


async def test_every_act_by_the_command_line_is_in_the_audit(kit: Kit) -> None:
    """With person, act, address and outcome; refused ones as well."""
    await kit.running_job()
    ann = {BY_HEADER: "Ann%20%C3%84"}
    for verb, body, status in (
        ("resume", {"from_scratch": True}, 409),
        ("pause", {"at_step": 9}, 200),
        ("update", {"version": "v2", "when": "lazy", "by": "bob", "note": "faster"}, 200),
        ("stop", None, 200),
    ):
        answer = await kit.http.post(f"/v1/jobs/{JOB}/{verb}", json=body, headers=ann)
        assert answer.status_code == status, answer.text
    await kit.http.post("/v1/jobs", json={"spec": SPEC, "code_version": "v7"}, headers=ann)
    alert = {"kind": "manual", "job": JOB, "at": 1.0, "fingerprint": "x", "evidence": {"text": "odd"}}
    await kit.http.post("/v1/alerts", json=alert, headers=ann)
    acts = kit.ledger.by_hand()[::-1]
    assert [(entry.act, entry.target) for entry in acts] == [
        ("resume", JOB),
        ("pause", JOB),
        ("update", JOB),
        ("stop", JOB),
        ("submit", SPEC["name"]),
        ("alert", JOB),
    ]
    assert [entry.by for entry in acts] == ["Ann \xc4", "Ann \xc4", "bob", "Ann \xc4", "Ann \xc4", "Ann \xc4"]
    assert {(entry.via, entry.source) for entry in acts} == {("api", "127.0.0.1")}
    assert all(entry.done_at for entry in acts)
    resumed = acts[0]
    assert resumed.state is ActionState.FAILED
    assert "from zero" in resumed.reason
    assert acts[1].reason == "at step 9"
    assert "v2" in acts[2].reason
    assert acts[3].outcome.startswith("now stopped")


def test_forged_foreign_and_old_cookies_are_of_no_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cookie of another secret, a changed one, and one of yesterday."""
    sessions = Sessions("secret", 1, life_s=60)
    cookie, session = sessions.login("secret", "ada")
    assert sessions.read(cookie) == session
    assert sessions.read(None) is None
    body, _, signature = cookie.rpartition(".")
    assert sessions.read(f"{body}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}") is None
    assert Sessions("other", 1, life_s=60).read(cookie) is None
    later = sessions._signer().signer  # what decides how old a cookie is
    made_at = later("secret").get_timestamp
    monkeypatch.setattr(later, "get_timestamp", lambda self: made_at() + 61)
    assert sessions.read(cookie) is None


def test_logins_outlive_the_replacement_of_the_secret(tmp_path: Path) -> None:
    """As long as the secret that they were begun under is accepted."""
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("old")
    sessions = Sessions(Keys(path), 1, life_s=60)
    cookie, session = sessions.login("old", "ada")
    path.write_text("newer\nold")
    assert sessions.read(cookie) == session
    path.write_text("newer")
    assert sessions.read(cookie) is None


async def test_who_is_that_of_the_login_whatever_the_request_says(kit: Kit) -> None:
    """The audit has the person who logged in, the act, the target, the reason and what came of it."""
    await kit.register("m0")
    async with browser(kit) as client:
        headers = {CSRF_HEADER: await login(client, "ada\0 lovelace")}
        body = {"reason": "smells of smoke", "by": "another person"}
        await client.post("/v1/machines/m0/evict", json=body, headers=headers)
        again = await client.post("/v1/machines/m0/evict", json=body, headers=headers)
        assert again.status_code == 409
        await client.post("/v1/machines/m0/release", json={"reason": "new fan"}, headers=headers)
    await kit.post("/v1/machines/m0/release", status=409)
    release_api, release, refused, evict = kit.ledger.by_hand("m0")
    assert (evict.by, evict.via, evict.act, evict.state) == ("ada\ufffd lovelace", "page", "evict", "done")
    assert "smells of smoke" in evict.reason
    assert evict.done_at is not None
    assert (refused.state, refused.outcome.split(":")[0]) == (
        ActionState.FAILED,
        "machine m0 is cordoned already (smells of smoke)",
    )
    assert (release.act, release.reason, release.outcome) == ("release", "new fan", "now provisioning")
    assert (release_api.via, release_api.by, release_api.state) == (
        "api",
        "an unnamed person",
        ActionState.FAILED,
    )


async def test_an_eviction_of_a_working_machine_names_who_asked(kit: Kit) -> None:
    """The incident that it opens names the person as well."""
    await kit.running_job()
    async with browser(kit) as client:
        headers = {CSRF_HEADER: await login(client)}
        answer = await client.post("/v1/machines/m0/evict", json={"reason": "x"}, headers=headers)
    assert answer.json()["incident"] == "gpt-1"
    assert kit.incidents()[0].alerts[0].evidence["by"] == "ada"
    assert kit.ledger.by_hand("m0")[0].outcome.startswith("opened gpt-1")


async def test_the_page_may_load_from_this_host_only(kit: Kit) -> None:
    """Every file carries the policy that forbids everything else, inline scripts included."""
    async with browser(kit) as client:
        for path in ("/ui/", "/ui/vendor/uplot/uPlot.iife.min.js", "/ui/main.js"):
            answer = await client.get(path)
            assert answer.status_code == 200, path
            policy = dict(
                part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
            )
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["require-trusted-types-for"] == "'script'"
            assert answer.headers["x-content-type-options"] == "nosniff"
        unchanged = await client.get(
            "/ui/", headers={"If-None-Match": (await client.get("/ui/")).headers["etag"]}
        )
        assert unchanged.status_code == 304
        for path in ("/ui/../auth.py", "/ui/%2e%2e/session.py", "/ui/nothing.js", "/ui//etc/passwd"):
            assert (await client.get(path)).status_code in (401, 404), path
