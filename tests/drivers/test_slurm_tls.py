"""TLS on Slurm: what the operator exports reaches the job step's agent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import envfile, settings
from holdfast.drivers import processes
from holdfast.drivers.slurm import SlurmDriver
from holdfast.drivers.slurm_settings import SlurmSettings
from holdfast.paths import machine_dir
from holdfast.settings import Settings
from holdfast.tls import Tls
from tests.agent.site import Patient
from tests.certificates import AGENT_NAME, Authority
from tests.drivers.scripted_slurm import Queue
from tests.e2e.gateway_process import NOWHERE, GatewayProcess, gateway_process
from tests.e2e.waiting import wait_for

AGENT_HOST = "127.0.0.2"
"""Not in the certificate: nodes' addresses are not."""
SRUN = """\
#!/bin/bash
# As srun does it: options away, the variables of --export set, then the command.
while [[ $1 == --* ]]; do
  case $1 in --export=ALL,*) export "${1#--export=ALL,}" ;; esac
  shift
done
exec "$@"
"""


def chosen(authority: Authority) -> dict[str, Path | str]:
    """Settings of an operator."""
    folder = authority.folder
    return {
        "tls_cert": folder / "cert.pem",
        "tls_key": folder / "key.pem",
        "tls_ca": authority.ca,
        "tls_agent_name": AGENT_NAME,
    }


def test_up_keeps_the_files_for_later_commands_and_for_agents(tmp_path: Path) -> None:
    """In the folder that the nodes share; the key's content stays in its file."""
    authority = Authority(tmp_path / "pki")
    authority.certify("site", "127.0.0.1")
    envfile.remember(Settings.model_validate({"home": tmp_path, **chosen(authority)}))
    found = settings.load(tmp_path)
    assert {name: getattr(found, name) for name in chosen(authority)} == chosen(authority)
    assert "PRIVATE" not in (tmp_path / "settings.env").read_text()


@contextmanager
def job_step(gateway: GatewayProcess, environment: dict[str, str], folder: Path) -> Iterator[None]:
    """Submit a machine, and run its batch script as Slurm would: with the environment that sbatch had."""
    queue = Queue()
    run = queue.runner()
    home = gateway.settings.home
    driver = SlurmDriver(
        Settings(home=home),
        SlurmSettings(start_s=0.01),
        run=run,
        env={"PATH": os.environ["PATH"], **environment},
    )
    [node] = driver.provision(1)
    [submitted] = [command for command in run.asked if command[0] == "sbatch"]
    assert "--export=ALL" in submitted
    programs = folder / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
    started = dict(run.env) | {"SLURMD_NODENAME": node, "PATH": f"{programs}:{run.env['PATH']}"}
    script = subprocess.Popen(["bash", submitted[-1]], env=started, cwd=home)
    try:
        yield
    finally:
        script.send_signal(signal.SIGUSR1)  # the driver's word that the machine is taken away
        try:
            script.wait(120)
        finally:
            script.kill()
            processes.kill_all(machine_dir(home, node))
    assert not processes.find_all(machine_dir(home, node))


@pytest.mark.thorough
@pytest.mark.e2e
async def test_agent_of_the_batch_script_speaks_tls(tmp_path: Path) -> None:
    """It registers at a gateway that knows nothing else, and shows the certificate that all agents share."""
    authority = Authority(tmp_path / "pki")
    authority.certify("site", "127.0.0.1", AGENT_NAME)
    with gateway_process(tmp_path / "home", heartbeat_s=1.0, **chosen(authority)) as gateway:
        environment = {
            f"HOLDFAST_{name.upper()}": str(value)
            for name, value in {
                **chosen(authority),
                "gateway_url": gateway.settings.own_gateway,
                "s3_endpoint": NOWHERE,
                "agent_host": AGENT_HOST,
                "preload": "",
            }.items()
        }
        with job_step(gateway, environment, tmp_path):

            def registered() -> str:
                found = gateway.http.get("/v1/machines").json()
                return next((each["address"] for each in found if each["name"] == "node1"), "")

            address = wait_for("the agent is registered", registered)
            assert address.startswith(f"{AGENT_HOST}:")
            known = Tls(ca=authority.ca, agent_name=AGENT_NAME)
            async with Patient(address, gateway.secret, tls=known) as agent:
                assert (await agent.state()).machine == "node1"
