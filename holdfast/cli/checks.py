"""The checks of ``holdfast doctor``. Each checks one thing and never raises."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

from holdfast import redact, secret, tls
from holdfast.cli import context
from holdfast.cli.doctor_check import DoctorCheck
from holdfast.errors import SettingsError, UnavailableError
from holdfast.listen import takes_connections
from holdfast.paths import SHM
from holdfast.settings import Settings
from holdfast.tls import PLAIN, Tls

SHM_NEEDED_BYTES = 1 << 30
DISK_NEEDED_BYTES = 2 << 30


def run_all() -> list[DoctorCheck]:
    """Return all checks; those of a project only inside one."""
    from holdfast.cli import site_checks  # noqa: PLC0415  (loads the stores and plug-ins)

    results = [python(), torch(), *site_checks.prefect(), shared_memory(), py_spy(), site_checks.nvml()]
    results += site_checks.plug_ins()
    try:
        settings = context.of_site()
    except (SettingsError, UnavailableError) as error:
        return [*results, DoctorCheck(name="project", ok=False, found="none here", advice=str(error))]
    running = services(settings)
    results += [disk(settings), secret_file(settings), *running, site_checks.clock(settings)]
    if not settings.stored_in_s3 or running[-1].ok:
        results.append(site_checks.store_rights(settings))
    return results


def python() -> DoctorCheck:
    """Python 3.11 or newer."""
    ok = sys.version_info >= (3, 11)
    advice = "" if ok else "install Python 3.11 or newer"
    return DoctorCheck(name="python", ok=ok, found=sys.version.split()[0], advice=advice)


def torch() -> DoctorCheck:
    """Check for the torch series that the checkpoint format was tested with (2.13)."""
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return DoctorCheck(name="torch", ok=False, found="not installed", advice="pip install torch==2.13.0")
    ok = found.startswith("2.13.")
    advice = "" if ok else "Holdfast is tested with torch 2.13: pip install torch==2.13.0"
    return DoctorCheck(name="torch", ok=ok, found=found, advice=advice)


def shared_memory(folder: Path = SHM, needed_bytes: int = SHM_NEEDED_BYTES) -> DoctorCheck:
    """Room for checkpoints in memory."""
    if not folder.is_dir():
        return DoctorCheck(name="shared memory", ok=False, found=f"no {folder}", advice="mount a tmpfs there")
    usage = shutil.disk_usage(folder)
    ok = usage.free >= needed_bytes
    advice = "" if ok else f"mount -o remount,size=4G {folder} (in a container: --shm-size=4g), or free some"
    found = f"{folder}: {usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free"
    return DoctorCheck(name="shared memory", ok=ok, found=found, advice=advice)


def py_spy() -> DoctorCheck:
    """Check whether stacks of other processes can be read (hang diagnosis needs them)."""
    binary = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if binary is None:
        return DoctorCheck(name="py-spy", ok=False, found="not found", advice="pip install py-spy")
    # The child reports when it is up: a dump of a half-started interpreter fails for another reason.
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            done = subprocess.run(
                [binary, "dump", "--json", "--pid", str(child.pid)],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return DoctorCheck(
                name="py-spy",
                ok=False,
                found="does not answer",
                advice="run `py-spy dump` yourself to see why",
            )
        finally:
            child.kill()
    if done.returncode == 0:
        return DoctorCheck(name="py-spy", ok=True, found="may read stacks of other processes")
    advice = (
        "run as root, or give the agent ptrace rights: CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0"
    )
    return DoctorCheck(
        name="py-spy", ok=False, found=(done.stderr.strip() or "failed").splitlines()[0], advice=advice
    )


def disk(settings: Settings, needed_bytes: int = DISK_NEEDED_BYTES) -> DoctorCheck:
    """Room for state, logs and the embedded object store, also where `holdfast up` has yet to make the folder."""
    home = settings.home.absolute()
    free = shutil.disk_usage(next(folder for folder in (home, *home.parents) if folder.is_dir())).free
    ok = free >= needed_bytes
    advice = "" if ok else f"free some space, or move the project: {needed_bytes >> 30} GiB are needed"
    return DoctorCheck(
        name="disk", ok=ok, found=f"{settings.home}: {free / 2**30:.1f} GiB free", advice=advice
    )


def secret_file(settings: Settings) -> DoctorCheck:
    """Check that the shared secret is there and that only its owner can read it."""
    if settings.shared_secret.get_secret_value():
        return DoctorCheck(name="secret", ok=True, found="HOLDFAST_SHARED_SECRET")
    try:
        secret.read(settings.secret_path)
    except SettingsError as error:
        return DoctorCheck(name="secret", ok=False, found="not usable", advice=str(error))
    return DoctorCheck(name="secret", ok=True, found=f"{settings.secret_path}, mode 0600")


def services(settings: Settings) -> list[DoctorCheck]:
    """Gateway, Prefect and, where checkpoints are in S3, S3: each answers, or is down with its port free."""
    return [
        _service("gateway", f"{settings.gateway}/healthz", settings.gateway_url, tls.of(settings)),
        _service(
            "prefect",
            f"{settings.prefect_api}/health",
            settings.prefect_api_url,
            PLAIN if settings.prefect_api_url else tls.of(settings),
        ),
        *([_service("s3", settings.s3, settings.s3_endpoint)] if settings.stored_in_s3 else []),
    ]


def _service(name: str, url: str, elsewhere: str, certified: Tls = PLAIN) -> DoctorCheck:
    try:
        trusted: dict[str, Any] = {"verify": tls.of_s3()} if name == "s3" else certified.http()
        status = httpx.get(url, timeout=2.0, trust_env=False, **trusted).status_code
    except (httpx.HTTPError, OSError) as error:
        return _unreachable(name, url, elsewhere, error)
    # S3 answers an unsigned request with 403: it is up.
    if status < 400 or (name == "s3" and status < 500):
        return DoctorCheck(name=name, ok=True, found=f"{redact.passwords(url)} answers")
    advice = f"something answers {status}: another program's port? `holdfast up --port N` takes other ports"
    return DoctorCheck(name=name, ok=False, found=f"{redact.passwords(url)} answers {status}", advice=advice)


def _unreachable(name: str, url: str, elsewhere: str, error: Exception) -> DoctorCheck:
    parsed = httpx.URL(url)
    if elsewhere:
        advice = "it is set to run elsewhere (docs/settings.md): start it there"
    elif takes_connections(parsed.host, parsed.port or 80, within_s=1.0):
        advice = f"another program has port {parsed.port}: `holdfast up --port N` takes other ports"
    else:
        advice = "start it: `holdfast up`"
    found = f"{redact.passwords(url)}: {type(error).__name__}"
    return DoctorCheck(name=name, ok=False, found=found, advice=advice)
