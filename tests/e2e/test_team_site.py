"""A team's site: PostgreSQL for both databases, TLS, a Prefect API with a password, secrets in a mounted folder,
several workers. What is secret is looked for everywhere afterwards."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from cryptography import x509

from holdfast import secret
from holdfast.deployments.worker.environment import client_environment
from holdfast.models.alert import Classification, IncidentClass, IncidentState
from holdfast.paths import log_dir
from tests.certificates import Authority
from tests.e2e.site import POLICY, Site
from tests.e2e.stock_prefect import deploy_into
from tests.e2e.waiting import free_ports, wait_for
from tests.storage import servers

pytestmark = pytest.mark.thorough

PASSWORDS = {
    "first secret": "hunter-one-7f3a91",
    "second secret": "hunter-two-b18c44",
    "database": "hunter-pg-52e0d7",
    "prefect": "hunter-ui-9c6b03",
    "s3": "hunter-s3-e4417a",
}
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def place(path: Path, content: str) -> None:
    """Another file in its place, as Kubernetes changes a mounted secret."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(content)
    new.chmod(0o600)
    os.replace(new, path)


class Team:
    """The site, and what lies around it."""

    def __init__(self, folder: Path, database: str, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self.database = database
        self.home = folder / ".holdfast"
        self.mounted = folder / "secrets"
        self.pki = Authority(folder / "pki")
        self.pki.certify("site", "127.0.0.1")
        self.site: Site

    def prepare(self) -> None:
        """Prepare the files that an operator has before `holdfast up`."""
        servers.create_database(self.database, "prefect")
        server = self.database.partition("@")[2].rpartition("/")[0]
        with_password = f"holdfast:{PASSWORDS['database']}@{server}"
        self.mounted.mkdir()
        place(self.mounted / "holdfast_database_url", f"postgresql+psycopg://{with_password}/postgres")
        place(self.mounted / "holdfast_prefect_database_url", f"postgresql+asyncpg://{with_password}/prefect")
        place(self.mounted / "holdfast_prefect_auth", f"admin:{PASSWORDS['prefect']}")
        place(self.mounted / "holdfast_s3_secret_key", PASSWORDS["s3"])
        place(self.mounted / "shared-secret", PASSWORDS["first secret"])
        self.home.mkdir()
        (self.folder / "policy.yaml").write_text(POLICY)
        self.configure(self.home, free_ports())

    def configure(self, home: Path, port: int) -> None:
        """Settings of the site, for one process more of it too."""
        chosen = {
            "PORT": port,
            "POLICY_FILE": self.folder / "policy.yaml",
            "SECRETS_DIR": self.mounted,
            "SECRET_FILE": self.mounted / "shared-secret",
            "TLS_CERT": self.pki.folder / "cert.pem",
            "TLS_KEY": self.pki.folder / "key.pem",
            "TLS_CA": self.pki.ca,
            "WARM_RUNS": 1,
        }
        (home / "settings.env").write_text("".join(f"HOLDFAST_{k}={v}\n" for k, v in chosen.items()))

    def dump(self, database: str) -> str:
        """All that a database holds, as text."""
        url = self.database.replace("+psycopg", "").rpartition("/")[0]
        command = [str(self.programs / "pg_dump"), "--data-only", "--inserts", f"{url}/{database}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def serial(self, address: str) -> int:
        """Serial number of the certificate that is shown there."""
        host, _, port = address.rpartition(":")
        shown = ssl.get_server_certificate((host, int(port)), timeout=10)
        return x509.load_pem_x509_certificate(shown.encode()).serial_number


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """The site, up, with a job's worth of machines and a standby."""
    if (programs := servers.postgres_binaries()) is None:
        pytest.skip("PostgreSQL is not installed")
    with servers.postgres(programs) as database, pytest.MonkeyPatch.context() as patch:
        made = Team(tmp_path_factory.mktemp("team"), database, programs)
        for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "PREFECT_"))]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_HOME", str(made.home))
        made.prepare()
        made.site = Site.start(made.home, 3)
        yield made
        made.site.down()


@contextmanager
def second_worker(team: Team) -> Iterator[Path]:
    """A second playbook worker of the same pool, with a home of its own; the path of its socket."""
    home = team.folder / "other-host"
    home.mkdir()
    settings = team.site.settings
    team.configure(home, free_ports())
    with (home / "settings.env").open("a") as file:
        file.write(f"HOLDFAST_PREFECT_API_URL={settings.prefect_api}\nHOLDFAST_S3_ENDPOINT={settings.s3}\n")
        file.write(f"HOLDFAST_GATEWAY_URL={settings.gateway}\n")
    command = [sys.executable, "-P", "-m", "holdfast.deployments.worker", "--home", str(home)]
    yield from _process(command, home, {}, home / "run" / "worker.sock")


@contextmanager
def process_worker(team: Team, pool: str) -> Iterator[Path]:
    """Prefect's own worker of type process."""
    environment = client_environment(team.site.settings) | {"PREFECT_WORKER_QUERY_SECONDS": "0.5"}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"]
    yield from _process(command, team.folder, environment, team.folder)


def _process(command: list[str], folder: Path, environment: dict[str, str], result: Path) -> Iterator[Path]:
    (folder / "run").mkdir(exist_ok=True)
    with (folder / "process.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield result
    finally:
        started = [process, *psutil.Process(process.pid).children(recursive=True)]
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in started[1:]:
            if isinstance(child, psutil.Process) and child.is_running():
                child.kill()


def poke(path: Path, line: str) -> str:
    """Say one line to a worker; its answer, empty while it does not listen."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(path))
            client.sendall(f"{line}\n".encode())
            return client.makefile().readline().strip()
    except OSError:
        return ""


def test_databases_and_doors(team: Team) -> None:
    """Both databases are PostgreSQL; gateway, agents and Prefect refuse access without TLS and secrets."""
    site = team.site
    machine = site.ledger.machines()[0]
    assert "'holdfast'" in team.dump("prefect"), "the work pool"
    assert machine.name in team.dump("postgres")
    for address in (machine.address, f"127.0.0.1:{site.settings.port}"):
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{address}/healthz", timeout=10)
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"https://{address}/healthz", timeout=10)
    assert site.http.get("/v1/machines", headers={"Authorization": "Bearer wrong"}).status_code == 401
    prefect = f"{site.settings.prefect_api}/work_pools/holdfast"
    assert prefect.startswith("https://")
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(prefect, timeout=120)
    assert httpx.get(prefect, timeout=120, **site.tls.http()).status_code == 401
    assert site.prefect.get("/work_pools/holdfast").is_success


def test_recoveries_go_on_while_certificates_and_secret_are_replaced(team: Team, name: str) -> None:
    """A rank dies, everything is renewed under the running job, a machine dies: nothing is restarted for it."""
    site = team.site
    site.submit(name)
    site.fault("kill-rank", site.job(name).machines[0], 0)
    site.wait_recovered(name, 1)

    gateway, agent = (
        f"127.0.0.1:{site.settings.port}",
        site.ledger.machine(site.job(name).machines[1]).address,
    )
    before = team.serial(gateway), team.serial(agent)
    services = {each: site.service(each).pid for each in ("gateway", "worker")}
    team.pki.certify("site", "127.0.0.1")
    prefect = f"127.0.0.1:{site.settings.port + 1}"
    assert team.serial(gateway) == team.serial(agent) == team.serial(prefect)
    assert team.serial(gateway) not in before
    old, new = PASSWORDS["first secret"], PASSWORDS["second secret"]
    for stage in (f"{old}\n{new}\n", f"{new}\n{old}\n", f"{new}\n"):
        place(team.mounted / "shared-secret", stage)
        site.renew_secret()
        site.wait_more_steps(name)
    for sent, status in ((old, 401), (new, 200)):
        answer = site.http.get("/v1/jobs", headers={"Authorization": f"Bearer {sent}"})
        assert answer.status_code == status

    site.fault("kill-machine", site.job(name).machines[1])
    incident = site.wait_recovered(name, 2)
    assert incident.incident_class is IncidentClass.MACHINE_FAULT
    assert site.done(incident)["evict"] == 1
    assert {each: site.service(each).pid for each in services} == services
    site.settle()


def test_of_two_workers_that_start_the_same_playbook_one_acts(team: Team, name: str) -> None:
    """Each is handed a run of the same attempt at the same moment; the other learns the holder's name, and ends."""
    site = team.site
    site.submit(name)
    with second_worker(team) as other, site.unsupervised():
        wait_for("the second worker is ready", lambda: '"warm": 1' in poke(other, "status"))
        site.kill("gateway")  # it would start a run of its own
        job = site.job(name)
        incident = site.ledger.open_incident(
            name,
            Classification(incident_class=IncidentClass.JOB_CRASH, confidence=1.0, reasons=("drill",)),
            job.epoch,
            [],
            detected_at=1.0,
        )
        given = {"incident": {"id": incident.id, "attempt": 1}}
        ours = site.home / "run" / "worker.sock"
        runs = {path: site.run_deployment("job-crash", given) for path in (ours, other)}
        for path, run in runs.items():
            assert poke(path, run) == "ok"

        def ended() -> list[dict[str, Any]] | None:
            found = [site.prefect.get(f"/flow_runs/{run}").json() for run in runs.values()]
            return found if all(each["state_type"] in FINAL for each in found) else None

        found = wait_for("both runs have ended", ended)
        closed = site.ledger.incident(incident.id)
        assert closed.state is IncidentState.RECOVERED, closed.summary
        won = [each for each in found if each["state_name"] == "Recovered"]
        lost = [each for each in found if each["state_name"] in {"Failed", "Dismissed"}]
        assert len(lost) == len(won) == 1, [each["state"] for each in found]
        assert any(word in lost[0]["state"]["message"] for word in ("acts on it", "may not act", "is closed"))
        kinds = site.done(closed)
        assert kinds["pause"] == kinds["start"] == 1, kinds
    site.settle()


def test_prefects_own_worker_runs_playbooks_too(team: Team, name: str) -> None:
    """`prefect deploy --all` into a pool of type process, and a stock `prefect worker` on it."""
    site = team.site
    deploy_into(site, team.folder, "stock", "process")
    deployment = site.prefect.get("/deployments/name/job-crash/job-crash").json()
    assert deployment["work_pool_name"] == "stock"
    site.submit(name)
    with process_worker(team, "stock"):
        site.fault("kill-rank", site.job(name).machines[0], 0)
        incident = site.wait_recovered(name, 1, timeout_s=120)
        run = site.flow_run(incident)
        assert run["work_pool_name"] == "stock"
        assert run["labels"].get("prefect.worker.name", "").startswith("ProcessWorker"), run["labels"]
        assert site.done(incident)["start"] == 1
    site.settle()


def test_nothing_secret_is_to_be_found(team: Team) -> None:
    """Not in logs, nor in what Prefect and the ledger keep (runs, artifacts, logs), process lists, or answers."""
    site = team.site
    key = (team.pki.folder / "key.pem").read_text().splitlines()[1]
    secrets = {**PASSWORDS, "key of the certificate": key}
    places = {
        str(path): path.read_text(errors="replace")
        for folder in (log_dir(site.home), site.home / "machines", team.folder)
        for path in folder.rglob("*.log")
    }
    assert len(places) >= 8, sorted(places)
    places["prefect's database"] = team.dump("prefect")
    places["ledger"] = team.dump("postgres")
    places["process list"] = "\n".join(
        " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
    )
    places["settings.env"] = (site.home / "settings.env").read_text()
    for path in ("/metrics", "/v1/status", "/v1/machines", "/v1/incidents"):
        places[f"gateway {path}"] = site.http.get(path).text
    # What is looked through is what it should be: each has something that must be in it.
    assert "holdfast.deployments.gateway" in places["process list"]
    assert "job-crash" in places["prefect's database"]
    assert "incident" in places["ledger"]
    found = [
        (what, where) for what, value in secrets.items() for where, text in places.items() if value in text
    ]
    assert found == []
    assert secret.read(team.mounted / "shared-secret") == PASSWORDS["second secret"]
