"""The status page of a real site, in a real browser: a job, its recovery, and an eviction by hand."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast import secret
from holdfast.models.history import ActionState
from tests.e2e.site import Site
from tests.page.tab import DESKTOP, PHONE, Tab, browser


def test_page_shows_a_recovery_and_evicts_by_hand(site: Site, name: str, tmp_path: Path) -> None:
    """Phases that the script names arrive on the page; an eviction asked for there runs its playbook."""
    machines = site.submit(name).machines
    site.fault("kill-rank", machines[1])
    site.wait_recovered(name)
    site.wait_more_steps(name, 20)
    asyncio.run(look(site, name, machines[1], tmp_path))
    incident = site.wait_recovered(name, 2)
    assert machines[1] not in site.job(name).machines
    assert incident.alerts[0].evidence["by"] == "ada"
    (act,) = [each for each in site.ledger.by_hand(machines[1]) if each.via == "page"]
    assert (act.act, act.by, act.via, act.state) == ("evict", "ada", "page", ActionState.DONE)
    assert incident.id in act.outcome


async def look(site: Site, name: str, machine: str, folder: Path) -> None:
    """Use the page as a person does; with SCREENSHOTS=FOLDER the documentation's pictures are taken on the way."""
    shots = Path(os.environ.get("SCREENSHOTS", str(folder)))
    async with browser() as tab:
        await tab.size(1280, 860)
        await tab.open(f"{site.settings.gateway}/ui/")
        await tab.fill("by", "ada")
        await tab.fill("secret", secret.read(site.settings.secret_path))
        await tab.click("dialog button[type=submit]")
        await tab.click("a", name)
        for text in ("recovered", "backward", "Slowest newest step"):
            await tab.sees(text)
        await tab.run(
            "document.querySelector('#go-rank').value = 1; document.querySelector('.go').requestSubmit()"
        )
        await tab.sees("Its copy is kept by")
        await tab.click("button", "Take its stack now")
        await tab.until("document.querySelectorAll('.part.rank pre').length > 0")
        await tab.shot(shots / "status-job.png")
        await tab.run("document.querySelector('.part.ranks').scrollIntoView(); window.scrollBy(0, -56)")
        await tab.shot(shots / "status-ranks.png")
        await tab.click(".part.incidents a", f"{name}-1")
        await tab.sees("Why this class")
        await tab.sees("in the Prefect UI")
        await tab.size(*PHONE, dark=True)
        await tab.sees("Where the time went")
        await tab.shot(shots / "status-phone.png")
        await tab.size(*DESKTOP)
        await evict(tab, machine)
        assert tab.errors == []


async def evict(tab: Tab, machine: str) -> None:
    """Through the dialog."""
    await tab.run(f"location.hash = '#/machines/{machine}'")
    await tab.click("button", "Evict…")
    await tab.fill("reason", "drill")
    await tab.click("dialog button[type=submit]")
    await tab.sees("drill")
