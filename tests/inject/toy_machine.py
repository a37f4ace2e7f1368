"""Stands in for an agent with two ranks: serves /v1/state and keeps two processes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("machine", "home", "host"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    home = Path(options.home)
    folder = home / "machines" / options.machine
    ranks = [
        {"rank": rank, "pid": subprocess.Popen(SLEEP).pid, "phase": "running"}
        for rank in (2, 3)
        if not (home / "no-job").exists()
    ]
    replay = {"job": "gpt~h0", "epoch": 1, "ranks": [{"rank": 9, "pid": 1, "phase": "running"}]}
    jobs = [replay, {"job": "gpt", "epoch": 1, "ranks": ranks}] if ranks else []
    state = json.dumps({"machine": options.machine, "incarnation": "i", "jobs": jobs}).encode()
    bearer = f"Bearer {(home / 'secret').read_text()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ok = self.path == "/v1/state" and self.headers["Authorization"] == bearer
            self.send_response(200 if ok else 401)
            self.end_headers()
            self.wfile.write(state if ok else b"{}")

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    facts = {
        "pid": os.getpid(),
        "create_time": psutil.Process().create_time(),
        "address": f"127.0.0.1:{server.server_port}",
        "ranks": {str(rank["rank"]): rank["pid"] for rank in ranks},
    }
    new = folder / "agent.new"
    new.write_text(json.dumps(facts))
    os.replace(new, folder / "agent.json")
    server.serve_forever()


main()
