"""The fork server loads all that a run needs for its first commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODULES_VARIABLE = "HOLDFAST_WORKER_PRELOAD"
CALLS_AN_AGENT = """
import asyncio, json, sys
import holdfast.deployments.worker.preload
before = set(sys.modules)
from holdfast.agent.client import AgentClient, agents_client

async def call():
    async with agents_client({}) as http:
        return await AgentClient(sys.argv[1], "secret", http=http).state(shards=False)

try:
    asyncio.run(call())
except Exception as error:
    answer = str(error)
print(json.dumps({"answer": answer, "loaded": sorted(set(sys.modules) - before)}))
"""


class _Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer as an agent that is asked for what it does not have."""
        body = json.dumps({"error": "RefusedError", "message": "reached"}).encode()
        self.send_response(409)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_call_of_an_agent_loads_no_module() -> None:
    """It did: aiohttp, in the middle of a recovery, for a tenth of a second."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        done = subprocess.run(
            [sys.executable, "-c", CALLS_AN_AGENT, address],
            capture_output=True,
            text=True,
            env=os.environ | {MODULES_VARIABLE: "holdfast.flows.job_crash"},
            timeout=120,
            check=True,
        )
        server.shutdown()
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"answer": "reached", "loaded": []}
