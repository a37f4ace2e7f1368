"""Prometheus and Alertmanager on loopback, with the shipped files, and a DCGM exporter that tests steer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.site import Site
from tests.e2e.waiting import end, free_ports, wait_for

FILES = Path(__file__).parents[2] / "deployments" / "prometheus"


class Exporter:
    """DCGM exporter of one machine with one GPU; tests set the last Xid."""

    def __init__(self, port: int) -> None:
        self.xid = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                labels = 'gpu="0",UUID="GPU-0",modelName="H100",GPU_I_ID=""'
                text = f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 50\nDCGM_FI_DEV_XID_ERRORS{{{labels}}} {exporter.xid}\n"
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class Monitoring:
    """Prometheus and Alertmanager, as tests use them."""

    def __init__(self, port: int) -> None:
        self.exporter = Exporter(port + 2)
        self.prometheus = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=120)
        self.alertmanager = httpx.Client(base_url=f"http://127.0.0.1:{port + 1}", timeout=120)

    def value(self, query: str) -> float | None:
        """The value of a query that selects one series; None: no series."""
        answer = self.prometheus.get("/query", params={"query": query})
        answer.raise_for_status()
        found = answer.json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None


@contextmanager
def monitoring(site: Site, folder: Path, machine: str) -> Iterator[Monitoring]:
    """Both are up and scrape the site; the exporter's machine is ``machine``."""
    programs = {name: shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")}
    for program, found in programs.items():
        if found is None:
            pytest.skip(
                f"{program} is not installed (Debian: apt-get install prometheus prometheus-alertmanager)"
            )
    port = free_ports()
    _lay_out(site, folder, port, machine)
    with ExitStack() as stack:
        for name, arguments in _commands(folder, port).items():
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen([str(programs[name]), *arguments], stdout=log, stderr=log)
            stack.callback(end, process)
        made = Monitoring(port)
        stack.callback(made.exporter.close)
        wait_for("Alertmanager answers", lambda: _answers(made.alertmanager, "/-/ready"))
        wait_for("Prometheus answers", lambda: _answers(made.prometheus, "/status/runtimeinfo"))
        yield made


def _commands(folder: Path, port: int) -> dict[str, tuple[str, ...]]:
    return {
        "prometheus": (
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ),
        "prometheus-alertmanager": (
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'alerts'}",
            f"--web.listen-address=127.0.0.1:{port + 1}",
            "--cluster.listen-address=",
        ),
    }


def _lay_out(site: Site, folder: Path, port: int, machine: str) -> None:
    """The operator's files, with this site's addresses and a second in place of each interval."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    secret = folder / "holdfast-secret"
    secret.write_text(site.settings.secret_path.read_text())
    secret.chmod(0o600)
    _edit(folder / "prometheus.yml", lambda known: _prometheus(known, site.settings.port, port, machine))
    _edit(folder / "alertmanager.yml", lambda known: _alertmanager(known, site.settings.port))


def _prometheus(known: dict[str, Any], gateway: int, port: int, machine: str) -> None:
    known["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    known["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{port + 1}"]
    own, agents, dcgm = known["scrape_configs"]
    own["static_configs"][0]["targets"] = [f"127.0.0.1:{gateway}"]
    for scrape in (agents, dcgm):
        found = scrape["http_sd_configs"][0]
        found["url"] = found["url"].replace("4300", str(gateway))
        found["refresh_interval"] = "1s"
    # All machines of this site share one address: the exporter is the one machine's.
    dcgm["relabel_configs"][0]["replacement"] = f"$1:{port + 2}"
    dcgm["relabel_configs"].append({"source_labels": ["machine"], "regex": machine, "action": "keep"})


def _alertmanager(known: dict[str, Any], gateway: int) -> None:
    route = known["route"]["routes"][0]
    route |= {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1s"}
    (webhook,) = next(each for each in known["receivers"] if each["name"] == "holdfast")["webhook_configs"]
    webhook["url"] = webhook["url"].replace("4300", str(gateway))


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    known = yaml.safe_load(path.read_text())
    change(known)
    path.write_text(yaml.safe_dump(known))


def _answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).is_success
    except httpx.HTTPError:
        return False
