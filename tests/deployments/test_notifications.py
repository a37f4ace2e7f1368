"""A real Prefect server notifies a webhook on loopback of playbook runs that need a person."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.deployments.notifications import AUTOMATION, notify
from holdfast.errors import SettingsError
from holdfast.settings import Settings
from tests.deployments.worker_kit import Api, prefect_server
from tests.e2e.waiting import wait_for


@pytest.fixture
def sink() -> Iterator[tuple[str, list[str]]]:
    """A webhook, and the texts that were posted to it."""
    texts: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", texts
    server.shutdown()
    server.server_close()


async def test_a_webhook_is_refused_when_it_is_none() -> None:
    """Before anything is asked of Prefect."""
    with pytest.raises(SettingsError, match=r"'ops@example.org': expected an address"):
        await notify(Settings(), "ops@example.org")


@pytest.mark.thorough
@pytest.mark.e2e
@pytest.mark.timeout(600)
async def test_people_are_notified_of_runs_that_need_them_and_of_no_others(
    tmp_path: Path, sink: tuple[str, list[str]]
) -> None:
    """Failed, suspended, given up and stopped, once each although it was set up twice; not of one that went well."""
    url, texts = sink
    with prefect_server(tmp_path) as api_url:
        api = Api(api_url)
        settings = Settings(home=tmp_path, prefect_api_url=api_url)
        await notify(settings, "http://127.0.0.1:9/old")
        await notify(settings, url)
        found = api.ask("POST", "/automations/filter", {})
        assert [each["name"] for each in found] == [AUTOMATION]

        flow = api.ask("POST", "/flows/", {"name": "job-crash"})["id"]

        def end(name: str, state: dict[str, str], tags: list[str]) -> None:
            run = api.ask("POST", "/flow_runs/", {"flow_id": flow, "name": name, "tags": tags})["id"]
            api.ask("POST", f"/flow_runs/{run}/set_state", {"state": state, "force": True})

        tags = ["holdfast", "incident"]
        end("gpt-1", {"type": "COMPLETED", "name": "Recovered", "message": "swapped"}, tags)
        end("other", {"type": "FAILED", "name": "Failed", "message": "not ours"}, ["else"])
        end("gpt-2", {"type": "FAILED", "name": "Failed", "message": "no answer from m1"}, tags)
        end("gpt-3", {"type": "PAUSED", "name": "Suspended", "message": "approve?"}, tags)
        end("gpt-4", {"type": "COMPLETED", "name": "Needs human", "message": "no standby"}, tags)
        end("gpt-5", {"type": "COMPLETED", "name": "Stopped", "message": "the ladder ends so"}, tags)
        wait_for("four notifications", lambda: len(texts) >= 4)
    heads = sorted(text.splitlines()[0] for text in texts)
    assert heads == ["gpt-2: Failed", "gpt-3: Suspended", "gpt-4: Needs human", "gpt-5: Stopped"]
    assert any("no answer from m1" in text for text in texts)
