"""An engineer's view of a recovery in the Prefect UI, in a real browser."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import secret
from holdfast.models.alert import Incident, IncidentClass
from holdfast.paths import machine_dir
from tests.e2e.browser import shades
from tests.e2e.site import Site
from tests.e2e.test_playbooks import REPLACED, assert_one_incident, assert_replaced
from tests.e2e.waiting import wait_for
from tests.page.tab import browser

ASKED = "location.pathname.includes('login') && !!document.querySelector('input[type=password]')"
TYPE_IN = """(() => {
  const field = document.querySelector("input[type=password]");
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, %s);
  field.dispatchEvent(new Event("input", {bubbles: true}));
})()"""


def test_dead_machine_is_replaced_and_its_incident_can_be_read(site: Site, name: str, tmp_path: Path) -> None:
    """A machine that loses power with its memory and disk: its shards come from its peer.

    The flow run has its name, its end and its steps' log lines on its page; its report is an artifact.
    """
    machines = site.submit(name, every_step=True).machines
    site.fault("kill-machine", machines[0])
    assert not machine_dir(site.home, machines[0]).exists()

    incident = assert_one_incident(site, name, IncidentClass.MACHINE_FAULT, REPLACED)
    assert incident.machine == machines[0]
    assert_replaced(site, name, machines, machines[0])
    first, second = site.epochs(name)
    assert (first.last_step or 0) - 1 <= second.start_step

    run = wait_for("the run is over for Prefect", lambda: ended(site, incident))
    assert run["name"] == f"{incident.id}: machine fault on {machines[0]}"

    screenshot = tmp_path / "incident.png"
    page = look(site, f"/runs/flow-run/{run['id']}", "swapped in", screenshot)
    run_texts = run["name"], "Recovered", f"evicting {machines[0]}", f"takes over from {machines[0]}"
    for text in (*run_texts, "Task Runs", "Logs", "Artifacts", "Parameters"):  # tabs of docs/operations.md
        assert text in page, text
    width, height, different = shades(screenshot)
    assert (width, height) == (1400, 1200)
    assert different > 50, "the screenshot is blank"

    report = next(one for one in site.artifacts(run["id"]) if one["key"] == f"incident-{incident.id}")
    shown = look(site, f"/artifacts/artifact/{report['id']}", "Signals", tmp_path / "report.png")
    assert "evict:" in shown
    assert "Signals" in shown


@pytest.mark.thorough
def test_the_pools_reasoning_is_shown_with_its_plot(site: Site, tmp_path: Path) -> None:
    """The schedule's artifact: size, why, and a plot that the browser draws."""
    run_id = site.run_deployment("resize-standby-pool", {"sizing": {"dry_run": True}})
    (artifact,) = wait_for(
        "the artifact", lambda: [one for one in site.artifacts(run_id) if one["key"] == "standby-pool"]
    )
    screenshot = tmp_path / "pool.png"
    shown = look(site, f"/artifacts/artifact/{artifact['id']}", "machine-days", screenshot, height=1600)
    assert "Standby pool:" in shown
    assert "machine-days" in shown
    assert '<img src="data:image/svg+xml;base64,' in shown
    # Text alone leaves most scan lines of the middle third alike; the plot lies there.
    assert shades(screenshot)[2] > 200, "the plot is not drawn"


def look(site: Site, path: str, text: str, screenshot: Path, *, height: int = 1200) -> str:
    """Log in with the CLI's address, go to ``path`` of the UI, wait for ``text``; the document."""

    async def person() -> str:
        async with browser() as tab:
            await tab.size(1400, height)
            ui = site.settings.prefect_api.removesuffix("/api")
            await tab.open(ui)
            await tab.until(ASKED)
            await tab.run(TYPE_IN % json.dumps(secret.prefect_auth(site.settings)))
            await tab.click("button[type=submit]")
            await tab.until("!location.pathname.includes('login')")
            await tab.open(f"{ui}{path}")
            await tab.sees(text)
            await tab.shot(screenshot)
            return str(await tab.run("document.documentElement.outerHTML"))

    return asyncio.run(person())


def ended(site: Site, incident: Incident) -> dict[str, object] | None:
    """The incident's run, once Prefect has its end and its tasks on record."""
    run = site.flow_run(incident)
    counted = site.prefect.post(
        "/task_runs/count",
        json={
            "flow_runs": {"id": {"any_": [run["id"]]}},
            "task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
        },
    ).json()
    return run if run["state"]["type"] == "COMPLETED" and counted >= 7 else None
