"""The status page in a real browser: what it shows, what it asks for, what people can do with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass, IncidentState
from holdfast.models.history import ActionState
from holdfast.models.machine import MachineState
from holdfast.models.roles import RoleSpec
from holdfast.testing.gateway_kit import JOB, Kit
from tests.page.served import log_in, served
from tests.page.tab import DEADLINE_S, DESKTOP, PHONE, Tab, browser
from tests.page.world import big_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&\u202e</script>'
VIEWS = {
    "#/": "Most lost to",
    "#/machines": "Manual actions",
    "#/machines/m3": "Agent",
    "#/incidents": "Summary",
    "#/incidents/gpt-1": "Why this class",
    "#/jobs/gpt": "of step 35, 70",
}
BASICS = """(() => {
  const wrong = [];
  const named = (e) => e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length;
  for (const kind of ['header', 'nav', 'main', 'h1'])
    if (document.querySelectorAll(kind).length !== 1) wrong.push(`not one ${kind}`);
  for (const e of document.querySelectorAll('button, a, input, select, canvas, [role=img], [tabindex="0"]'))
    if (e.offsetParent && !named(e) && !e.parentElement.closest('[role=img][aria-label]'))
      wrong.push(`without a name: ${e.outerHTML.slice(0, 120)}`);
  for (const t of document.querySelectorAll('table'))
    if (!t.caption && !t.closest('.chart')) wrong.push(`table without caption`);
  for (const th of document.querySelectorAll('main table:not(.u-legend) th'))
    if (!th.scope) wrong.push('th without scope');
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  if (new Set(ids).size !== ids.length) wrong.push('an id twice');
  return wrong;
})()"""
CONTRAST = """(() => {
  const lum = (c) => { const v = c.map(x => (x /= 255) <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const poor = new Set();
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!e.offsetParent || e.closest('.chart') || !text) continue;
    const [a, b] = [lum(rgb(getComputedStyle(e).color)), lum(ground(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`);
  }
  return [...poor];
})()"""


@pytest.fixture
async def site(kit: Kit) -> AsyncIterator[tuple[Kit, Tab, str]]:
    """A gateway with a job of 128 ranks, and a person who is logged in."""
    await big_job(kit)
    async with served(kit) as address, browser() as tab:
        await log_in(tab, address)
        yield kit, tab, address


async def go(tab: Tab, view: str, text: str) -> None:
    await tab.run(f"location.hash = {view!r}")
    await tab.sees(text)


async def test_every_view_asks_this_host_only_and_has_the_basics(site: tuple[Kit, Tab, str]) -> None:
    """Desktop and phone, light and dark: no foreign request, no script error, nothing sideways, names and contrast."""
    _, tab, address = site
    for view, text in VIEWS.items():
        for size, dark in ((DESKTOP, False), (PHONE, True)):
            await tab.size(*size, dark=dark)
            await go(tab, view, text)
            width = await tab.run("document.documentElement.scrollWidth")
            assert width <= size[0], f"{view} is {width} px wide"
            assert await tab.run(BASICS) == [], view
            assert await tab.run(CONTRAST) == [], view
    assert len(tab.requests) > 20
    assert [url for url in tab.requests if not url.startswith(f"{address}/")] == []
    assert tab.errors == []


async def test_a_foreign_request_would_be_refused_and_seen(site: tuple[Kit, Tab, str]) -> None:
    """The control: the policy stops other hosts, inline scripts and markup made of text."""
    _, tab, _ = site
    outcome = await tab.run("fetch('http://localhost:9/x').then(() => 'went', error => error.name)")
    assert outcome == "TypeError"
    assert await tab.run("try { document.body.innerHTML = '<b>x</b>'; 'set' } catch { 'threw' }") == "threw"
    await tab.run(
        "(() => { const s = document.createElement('div'); document.body.append(s);"
        " try { s.setAttribute('onclick', 'window.hacked = 1'); } catch { } s.click(); })()"
    )
    assert await tab.run("window.hacked") is None
    async with asyncio.timeout(DEADLINE_S):
        while not any("Content Security Policy" in error for error in tab.errors):
            await tab.run("0")  # what it logs is sent beside its answers


async def test_hostile_text_stays_text(kit: Kit) -> None:
    """Logs, reasons and names come from processes of any author: no script in them runs."""
    await big_job(kit, machines=4, ranks=2, tp=1, pp=1)
    found = Classification(
        incident_class=IncidentClass.USER_CODE_ERROR, confidence=1, machine="m0", rank=0, reasons=(HOSTILE,)
    )
    alert = Alert(
        kind=AlertKind.RANK_EXIT,
        job=JOB,
        machine="m0",
        rank=0,
        epoch=3,
        at=kit.clock.now(),
        evidence=dict.fromkeys(("error_type", "message", "traceback", "log_tail", HOSTILE), HOSTILE),
    )
    incident = kit.ledger.open_incident(JOB, found, 3, [alert], kit.clock.now())
    kit.ledger.record_alert(alert, incident.id, HOSTILE)
    asks = {"question": HOSTILE, "deadline": kit.clock.now() + 60, "default": "refuse"}
    kit.ledger.begin(incident.id, 1, "approve:m0", "approve", asks)
    kit.ledger.begin(incident.id, 1, f"evict:{HOSTILE}", "evict", {HOSTILE: HOSTILE})
    kit.ledger.set_incident(incident.id, summary=HOSTILE)
    kit.ledger.set_machine("m5", state=MachineState.CORDONED, cordon_reason=HOSTILE)
    kit.ledger.note_by_hand("evict", "m5", by=HOSTILE, via="page", reason=HOSTILE)
    async with served(kit) as address, browser() as tab:
        await log_in(tab, address, by=HOSTILE)
        for view in ("#/", "#/machines/m5", "#/incidents", f"#/incidents/{incident.id}", f"#/jobs/{JOB}"):
            await go(tab, view, "<img src=x onerror")
        await tab.run(
            "document.querySelector('#go-rank').value = 0; document.querySelector('.go').requestSubmit()"
        )
        await tab.sees("Last error")
        await tab.click("button", "Take its stack now")
        await tab.sees("<b>c10d</b>")
        assert await tab.run("document.querySelectorAll('main img, main script, main b > b').length") == 0
        assert await tab.run("window.hacked") is None
        assert tab.errors == []


async def test_wrong_secret_is_shown_in_the_dialog(kit: Kit) -> None:
    """And the right one opens the page."""
    await kit.register("m0")
    async with served(kit) as address, browser() as tab:
        await tab.open(f"{address}/ui/")
        await tab.fill("by", "eve")
        await tab.fill("secret", "guess")
        await tab.click("dialog button[type=submit]")
        await tab.sees("wrong secret")
        assert await tab.run("document.cookie") == ""
        await log_in(tab, address)
        await tab.sees("No jobs yet")
        assert await tab.run("document.cookie") == "", "scripts see the cookie"


async def test_evict_and_release_are_confirmed_and_audited(site: tuple[Kit, Tab, str]) -> None:
    """Nothing happens before the dialog has a reason; then it is done, shown, and written down."""
    kit, tab, _ = site
    spare = "m17"
    await go(tab, f"#/machines/{spare}", f"Machine {spare}")
    await tab.click("button", "Evict…")
    await tab.sees(f"Evict {spare}?")
    assert await tab.run("document.activeElement.name") == "reason"
    await tab.key("Enter")  # no reason yet
    assert {act.act for act in kit.ledger.by_hand()} <= {"login"}
    await tab.call("Input.insertText", text="smells of smoke")
    await tab.key("Enter")
    await tab.sees("smells of smoke")
    assert kit.ledger.machine(spare).state is MachineState.CORDONED
    await tab.click("button", "Release…")
    await tab.fill("reason", "new fan")
    await tab.click("dialog button[type=submit]")
    await tab.sees("new fan")
    acts = kit.ledger.by_hand(spare)
    assert [(act.act, act.by, act.via, act.state) for act in acts] == [
        ("release", "ada", "page", ActionState.DONE),
        ("evict", "ada", "page", ActionState.DONE),
    ]
    assert tab.errors == []


async def test_leaving_the_dialog_does_nothing(site: tuple[Kit, Tab, str]) -> None:
    """Escape and Cancel."""
    kit, tab, _ = site
    await go(tab, "#/machines/m3", "Machine m3")
    for leave in ("Cancel", ""):
        await tab.click("button", "Evict…")
        await tab.until("document.querySelector('dialog').open")
        await tab.fill("reason", "no")
        await (tab.click("dialog button", leave) if leave else tab.key("Escape"))
        await tab.until("!document.querySelector('dialog').open")
    assert {act.act for act in kit.ledger.by_hand()} <= {"login"}
    assert kit.ledger.machine("m3").state is MachineState.ACTIVE


async def test_what_a_playbook_asks_is_answered_on_the_page(site: tuple[Kit, Tab, str]) -> None:
    """The question appears by itself; the answer is in the ledger with who and why, and the question goes away."""
    kit, tab, _ = site
    found = Classification(
        incident_class=IncidentClass.JOB_HANG, confidence=0.7, machine="m5", reasons=("no step for 61 s",)
    )
    incident = kit.ledger.open_incident(JOB, found, 3, [], kit.clock.now())
    await go(tab, "#/", "job hang")  # without a reload
    asks = {"question": "evict m5, m6, m7?", "deadline": kit.clock.now() + 60, "default": "refuse"}
    kit.ledger.begin(incident.id, 1, "approve:m5", "approve", asks)
    await tab.sees("evict m5, m6, m7?")
    await tab.click("button", "Approve…")
    await tab.fill("reason", "one switch, I looked")
    await tab.click("dialog button[type=submit]")
    await tab.until("!document.body.innerText.includes('evict m5, m6, m7?')")
    (action,) = kit.ledger.actions(incident.id)
    assert action.result == {"approve": True, "by": "ada", "reason": "one switch, I looked"}
    assert kit.ledger.by_hand(incident.id)[0].act == "approve"


async def test_ranks_are_reached_by_keyboard(site: tuple[Kit, Tab, str]) -> None:
    """Arrow keys move over the map and say each rank; Enter shows it with its groups, peer and last error."""
    _, tab, _ = site
    await go(tab, "#/jobs/gpt", "Ranks that stand out")
    await tab.run("document.querySelector('.part.ranks canvas').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        await tab.key(key)
    line = await tab.run("document.querySelector('.part.ranks [aria-live]').textContent")
    assert line.startswith("rank 17 on m2: running")
    assert "TP 1, PP 0, DP 2" in line
    await tab.key("ArrowUp")
    await tab.key("Enter")
    for text in ("Rank 16 TP 0, PP 0, DP 2", "illegal memory access", "Its copy is kept by", "TP 2"):
        await tab.sees(text)


async def test_a_gateway_that_is_away_is_shown(kit: Kit) -> None:
    """The data on the page is then old, and the page shows that."""
    await kit.register("m0")
    async with browser() as tab:
        async with served(kit) as address:
            await log_in(tab, address)
            await tab.sees("live")
        await tab.sees("the gateway does not answer")


async def test_an_incident_is_shown_in_words(kit: Kit) -> None:
    """No JSON, no seconds since 1970; who only lost a peer is folded; what comes next stands on top."""
    await big_job(kit, machines=4, ranks=2, tp=1, pp=1)
    found = Classification(
        incident_class=IncidentClass.JOB_CRASH, confidence=1, machine="m0", rank=0, reasons=("x",)
    )
    exits = [
        Alert(
            kind=AlertKind.RANK_EXIT,
            job=JOB,
            machine=f"m{rank // 2}",
            rank=rank,
            epoch=3,
            at=kit.clock.now(),
            evidence={
                "message": "boom",
                "failed_at": kit.clock.now(),
                **({"cascade": "gloo: closed"} if rank else {}),
            },
        )
        for rank in range(4)
    ]
    incident = kit.ledger.open_incident(JOB, found, 3, exits[:1], kit.clock.now())
    for alert in exits:
        kit.ledger.record_alert(alert, incident.id, "opened")
    kit.ledger.begin(incident.id, 1, "pause", "pause", {})
    kit.clock.advance(0.4)
    kit.ledger.finish(
        incident.id, "pause", {"ranks": {"0": "ended", "1": "ended"}, "took_s": 0.4, "at_step": [7, 8]}
    )
    kit.ledger.begin(incident.id, 1, "evict:m0", "evict", {})
    async with served(kit) as address, browser() as tab:
        await log_in(tab, address)
        await go(tab, f"#/incidents/{incident.id}", "Under way: evict:m0, since")
        text = await tab.run("document.body.innerText")
        assert "ranks: 0 ended, 1 ended; took: 400.0 ms; at step: 7, 8" in text or "took: 0.40 s" in text
        assert "3 more ended because a peer was gone: ranks 1, 2, 3" in text
        assert "UTC" in text
        assert "{" not in text
        assert str(int(kit.clock.now()))[:7] not in text
        assert await tab.run("document.querySelectorAll('details:not([open]) .signal').length") == 3
        await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        await tab.call(
            "Browser.grantPermissions",
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
            **tab.context,
        )
        await tab.click("button", "copy")
        await tab.sees("copied")
        assert await tab.run("navigator.clipboard.readText()") == incident.id
        assert tab.errors == []


async def test_roles_of_a_job_are_shown(site: tuple[Kit, Tab, str]) -> None:
    """Each replica with its machine and state, and what the role waits for; no such part for a job without roles."""
    kit, tab, _ = site
    await go(tab, f"#/jobs/{JOB}", "of step 35, 70")
    assert await tab.run("document.querySelector('.part.roles').hidden")
    job = kit.ledger.job(JOB)
    roles = {
        "rollout": RoleSpec(script="rollout.py", replicas=2),
        "cache": RoleSpec(script="cache.py", own_machines=2),
        "reward": RoleSpec(script="reward.py", needs=("rollout",)),
    }
    kit.ledger.set_job(JOB, spec=job.spec.model_copy(update={"roles": roles}))
    (own,) = kit.ledger.claim_standbys(JOB, 1, role="cache")
    await kit.gateway.site.refresh()
    await kit.gateway.roles.tick()
    await tab.sees("rollout (dynamic)")
    await tab.sees(f"1 of 2: {own.name}")
    await tab.sees("for rollout")
    assert await tab.run("document.querySelectorAll('.part.roles tbody tr').length") == 3
    assert tab.errors == []


async def test_incidents_are_filtered_and_more_are_shown(kit: Kit) -> None:
    """The address has the filters; a filter taken back shows what was there before."""
    await big_job(kit, machines=4, ranks=2, tp=1, pp=1)
    for number in range(40):
        found = Classification(
            incident_class=IncidentClass.JOB_HANG, confidence=1, machine=f"m{number % 2}", reasons=("x",)
        )
        incident = kit.ledger.open_incident(JOB, found, 3, [], kit.clock.now())
        kit.ledger.set_incident(incident.id, state=IncidentState.RECOVERED)
    rows = "document.querySelectorAll('.part.list tbody tr').length"

    async def choose(name: str, value: str) -> None:
        field = f"document.querySelector('[name={name}]')"
        await tab.run(f"(e => {{ e.value = '{value}'; e.dispatchEvent(new Event('change')); }})({field})")

    async with served(kit) as address, browser() as tab:
        await log_in(tab, address)
        await go(tab, "#/incidents", "The newest 30 of 42")
        await tab.click("button", "Show more")
        await tab.until(f"{rows} === 42 && !document.body.innerText.includes('The newest')")
        await choose("class", "job_crash")
        await tab.until(f"{rows} === 2")
        await choose("class", "")
        await tab.sees("The newest 30 of 42")
        await choose("machine", "m1")
        await choose("class", "job_hang")
        await tab.until(f"{rows} === 20")
        assert await tab.run("location.hash") == "#/incidents?machine=m1&class=job_hang"
        await go(tab, "#/machines/m1", "Incidents that name it")
        await tab.click("a", "Incidents that name it")
        await tab.until(f"{rows} === 21 && document.querySelector('[name=machine]').value === 'm1'")
        assert tab.errors == []
