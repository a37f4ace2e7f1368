"""TLS: who is trusted, by which name, and how certificates are renewed without a restart."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from cryptography import x509

from holdfast.agent.checkpoints import shard_client
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.shard_port import ShardPort
from holdfast.errors import SettingsError, UnavailableError
from holdfast.models.agent import Fence
from holdfast.tls import READ_AT_ONCE, Tls
from tests.agent.shards import write_shard
from tests.agent.site import Patient
from tests.certificates import Authority
from tests.e2e.waiting import DEADLINE_S

SECRET = "s3cret"
ENDED = Fence(job="toy", epoch=1, incarnation="i1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "pki")
    made.certify("agent", "127.0.0.1")
    return made


def tls(authority: Authority, agent_name: str = "") -> Tls:
    folder = authority.folder
    return Tls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem", agent_name)


@pytest.fixture
def port(tmp_path: Path, authority: Authority) -> Iterator[ShardPort]:
    made = ShardPort(Memory("m1", tmp_path / "m1"), SECRET, "127.0.0.1", tls(authority))
    yield made
    made.close()


def served(address: str) -> int:
    """Serial number of the certificate that a port shows."""
    host, _, number = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(number)), timeout=60)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_shards_move_by_tls(tmp_path: Path, authority: Authority, port: ShardPort) -> None:
    """Both ways, metadata too, the bytes as they were."""
    path = write_shard(tmp_path / "mine", rank=3, step=8, payload=bytes(range(256)) * 40_000)
    (tmp_path / "metadata").write_bytes(b"plan" * 5000)
    shard_client.push(port.address, SECRET, path, tls(authority))
    shard_client.push_metadata(port.address, SECRET, "toy", "1.2", tmp_path / "metadata", tls=tls(authority))
    back = shard_client.pull(
        port.address, SECRET, job="toy", rank=3, step=8, folder=tmp_path / "new", tls=tls(authority)
    )
    page = shard_client.buffers.HEADER_BYTES
    assert back.read_bytes()[page:] == path.read_bytes()[page:]


def test_without_tls_nothing_is_sent_to_a_tls_port(tmp_path: Path, port: ShardPort) -> None:
    """And the port does not answer it."""
    with pytest.raises(UnavailableError):
        shard_client.push(port.address, SECRET, write_shard(tmp_path / "mine"))


def test_the_secret_is_not_sent_to_a_stranger(tmp_path: Path, authority: Authority) -> None:
    """One who is certified by another authority, or for another name, is left before the first byte."""
    received: list[bytes] = []
    stranger = Authority(tmp_path / "other")
    stranger.certify("agent", "127.0.0.1")
    wrong_name = Authority(tmp_path / "named")
    wrong_name.certify("agent", "10.9.9.9")
    for known, shown in ((authority, stranger), (wrong_name, wrong_name)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(shown.folder / "cert.pem", shown.folder / "key.pem")
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve(listener: socket.socket = listener, context: ssl.SSLContext = context) -> None:
                connection, _ = listener.accept()
                try:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        received.append(secured.recv(100))
                except OSError:
                    connection.close()

            thread = threading.Thread(target=serve)
            thread.start()
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(UnavailableError, match="certificate verify failed"):
                shard_client.check(address, SECRET, job="toy", rank=0, step=1, tls=tls(known))
            thread.join(60)
    assert received in ([], [b""], [b"", b""])


def test_agents_may_share_a_name(tmp_path: Path, authority: Authority, port: ShardPort) -> None:
    """Where addresses come and go with their pods."""
    authority.certify("agent", "agent.holdfast")
    path = write_shard(tmp_path / "mine")
    shard_client.push(port.address, SECRET, path, tls(authority, "agent.holdfast"))
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        shard_client.push(port.address, SECRET, path, tls(authority))


def test_a_renewed_certificate_is_served_without_a_restart(authority: Authority, port: ShardPort) -> None:
    """From the next connection on; one whose key does not fit leaves the one of before."""
    first = served(port.address)
    assert served(port.address) == first
    authority.certify("agent", "127.0.0.1")
    second = served(port.address)
    assert second != first
    authority.certify("agent", "127.0.0.1", key="elsewhere.pem")
    assert served(port.address) == second
    (authority.folder / "elsewhere.pem").replace(authority.folder / "key.pem")
    assert served(port.address) not in (first, second)


def test_a_new_authority_is_trusted_without_a_restart(
    tmp_path: Path, authority: Authority, port: ShardPort
) -> None:
    """Once its certificate is in the file, beside the former one or in its place."""
    ours = Tls(ca=authority.ca)
    path = write_shard(tmp_path / "mine")
    shard_client.push(port.address, SECRET, path, ours)
    former = served(port.address)
    new = Authority(tmp_path / "new-pki", "new authority")
    authority.ca.write_bytes(authority.pem + new.pem)
    new.certify("agent", "127.0.0.1")
    for name in ("cert.pem", "key.pem"):
        (new.folder / name).replace(authority.folder / name)
    shard_client.push(port.address, SECRET, path, ours)
    assert served(port.address) != former, "else the new authority was not needed"


async def test_commands_go_to_agents_by_tls(authority: Authority) -> None:
    """The same client code over httpx and uvicorn, with a renewal in between; plain commands get nowhere."""
    authority.certify("agent", "agent.holdfast")
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(_answers, log_config=None, lifespan="off", http="h11", ws="none")
    config.load()
    config.ssl = tls(authority).server()
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        before = await asyncio.to_thread(served, address)
        for _ in range(2):
            async with Patient(address, SECRET, tls=tls(authority, "agent.holdfast")) as agent:
                await agent.forget(ENDED)
            authority.certify("agent", "agent.holdfast")
        assert await asyncio.to_thread(served, address) != before
        async with Patient(address, SECRET) as agent:
            with pytest.raises(UnavailableError):
                await agent.forget(ENDED)
        async with Patient(address, SECRET, tls=tls(authority)) as agent:
            with pytest.raises(UnavailableError, match="certificate verify failed"):
                await agent.forget(ENDED)
    finally:
        server.should_exit = True
        await serving


async def _answers(scope: object, receive: object, send: Callable[..., object]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
    await send({"type": "http.response.body", "body": b"null"})  # type: ignore[misc]


async def test_a_connection_takes_little_memory(authority: Authority) -> None:
    """A gateway has one or two per agent; what is larger than a read still comes whole."""
    sent, taken = bytes(range(256)) * 4096, []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(len(writer.transport._ssl_protocol._ssl_buffer))  # type: ignore[attr-defined]
        writer.write(await reader.readexactly(len(sent)))
        await writer.drain()
        writer.close()

    both = tls(authority)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=both.server())
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=both.client())
        writer.write(sent)
        assert await asyncio.wait_for(reader.readexactly(len(sent)), DEADLINE_S) == sent
        writer.close()
    assert taken == [READ_AT_ONCE]


def test_only_the_sites_authority_is_trusted(authority: Authority) -> None:
    """Not the hundred that a system knows."""
    context = Tls(ca=authority.ca).client()
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert httpx.Client(**Tls(ca=authority.ca).http()) is not None


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (("cert.pem", "", "ca.pem"), "name both or neither"),
        (("cert.pem", "key.pem", ""), "HOLDFAST_TLS_CA is empty"),
        (("missing.pem", "key.pem", "ca.pem"), "missing.pem.*No such file.*expected a certificate"),
        (("ca.pem", "key.pem", "ca.pem"), "expected a certificate and its unencrypted key"),
        (("cert.pem", "key.pem", "key.pem"), r"HOLDFAST_TLS_CA = .*key.pem"),
    ],
)
def test_wrong_files_are_refused_at_once(
    authority: Authority, files: tuple[str, str, str], text: str
) -> None:
    """Named, with what was expected."""
    cert, key, ca = (authority.folder / name if name else None for name in files)
    with pytest.raises(SettingsError, match=text):
        Tls(cert, key, ca)


def test_a_key_that_others_may_read_is_refused(authority: Authority) -> None:
    """As the shared secret is."""
    folder = authority.folder
    (folder / "key.pem").chmod(0o644)
    with pytest.raises(SettingsError, match=r"HOLDFAST_TLS_KEY = .*key\.pem is open to others.*chmod 600"):
        Tls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
