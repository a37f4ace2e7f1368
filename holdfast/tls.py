"""TLS between gateway and agents: certificates from files, read again when they change.

With a certificate and key a process serves TLS; with an authority's certificate it connects by TLS, and to nothing
else. A connection takes the files as they are when it begins, so a renewed certificate needs no restart.
"""

from __future__ import annotations

import functools
import logging
import os
import ssl
import threading
from asyncio import constants
from asyncio.sslproto import SSLProtocol
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from holdfast import secret
from holdfast.errors import SettingsError
from holdfast.listen import is_loopback

if TYPE_CHECKING:
    from holdfast.settings import Settings

_log = logging.getLogger(__name__)

READ_AT_ONCE = 32 << 10
"""Bytes that asyncio keeps, zeroed, to read into for each connection by TLS. By itself it keeps 256 KiB, two thirds of
the memory of a gateway with a thousand agents; a TLS record has 16 KiB at most."""

HANDSHAKE_S = 10.0
"""asyncio waits a minute for the other side of a handshake."""

Version = tuple[tuple[int, int, int] | None, ...]


class Tls:
    """One side's certificates; without any, plain connections. Any thread may use it."""

    def __init__(
        self, cert: Path | None = None, key: Path | None = None, ca: Path | None = None, agent_name: str = ""
    ) -> None:
        """Read the files.

        Raises:
            SettingsError: one is missing or not what it should be, or only a part of them is named.
        """
        if (cert is None) != (key is None):
            raise SettingsError("HOLDFAST_TLS_CERT and HOLDFAST_TLS_KEY: name both or neither")
        if cert is not None and ca is None:
            raise SettingsError(
                "HOLDFAST_TLS_CA is empty: gateway and agents call each other, so both need the authority's certificate"
            )
        self._cert, self._key, self._ca = cert, key, ca
        self._agent_name = agent_name
        self._lock = threading.Lock()
        self._server: tuple[Version, ssl.SSLContext] | None = None
        self._client: ssl.SSLContext | None = None
        self._trusted: Version = ()
        if cert is not None:
            self._served()
        if ca is not None:
            SSLProtocol.max_size = READ_AT_ONCE
            self.refresh()

    @property
    def scheme(self) -> str:
        """Scheme of the URLs of gateway and agents."""
        return "https" if self._ca else "http"

    def server(self) -> ssl.SSLContext | None:
        """Return the context of a listening socket; None: no TLS. Each handshake reads the files as they are then."""
        if self._cert is None:
            return None
        constants.SSL_HANDSHAKE_TIMEOUT = HANDSHAKE_S
        listening = self._make_server()

        def renewed(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._served()

        listening.sni_callback = renewed
        return listening

    def client(self) -> ssl.SSLContext | None:
        """Return the context for connections to gateway and agents; None: no TLS. Trusts the site's authority alone."""
        self.refresh()
        return self._client

    def http(self) -> dict[str, Any]:
        """Return arguments for an httpx client."""
        return {"verify": self.client() or _usual()}

    def to_agent(self) -> dict[str, str]:
        """Return httpx extensions of a request to an agent: the name its certificate must carry, if not its address."""
        return {"sni_hostname": self._agent_name} if self._agent_name and self._ca else {}

    def agent_name(self, host: str) -> str:
        """Return the name that the certificate of the agent at ``host`` must carry."""
        return self._agent_name or host

    def refresh(self) -> None:
        """Trust the authority's present file, too; its former contents stay trusted until a restart."""
        if self._ca is None or (version := _version(self._ca)) == self._trusted:
            return
        with self._lock:
            try:
                if self._client is None:
                    self._client = ssl.create_default_context(cafile=self._ca)
                else:
                    self._client.load_verify_locations(cafile=self._ca)
                    _log.info("%s: read again", self._ca)
            except (OSError, ssl.SSLError) as error:
                if self._client is None:
                    raise SettingsError(f"HOLDFAST_TLS_CA = {self._ca}: {_why(error)}") from None
                _log.error("%s: %s; going on with what was trusted before", self._ca, _why(error))
            self._trusted = version

    def _served(self) -> ssl.SSLContext:
        """Return the context with the present certificate; the former one while the files do not fit together."""
        assert self._cert is not None
        assert self._key is not None
        version = _version(self._cert, self._key)
        with self._lock:
            if self._server is None or self._server[0] != version:
                try:
                    made = self._make_server()
                except SettingsError as error:
                    if self._server is None:
                        raise
                    _log.error("%s Going on with the certificate of before.", error)
                    made = self._server[1]
                else:
                    _log.info("certificate %s: read", self._cert)
                self._server = (version, made)
            return self._server[1]

    def _make_server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            assert self._cert is not None
            assert self._key is not None
            secret.require_private(f"HOLDFAST_TLS_KEY = {self._key}", self._key.stat())
            # An encrypted key is an error: there is no operator to type its passphrase.
            context.load_cert_chain(self._cert, self._key, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"HOLDFAST_TLS_CERT = {self._cert}, HOLDFAST_TLS_KEY = {self._key}: {_why(error)}; expected a "
                "certificate and its unencrypted key, as PEM."
            ) from None
        return context


PLAIN = Tls()


def of(settings: Settings) -> Tls:
    """Return the TLS configuration of the settings.

    Raises:
        SettingsError: a file is missing or not what it should be, or only a part of them is named.
    """
    if not (settings.tls_cert or settings.tls_key or settings.tls_ca):
        return PLAIN
    return Tls(settings.tls_cert, settings.tls_key, settings.tls_ca, settings.tls_agent_name)


def of_s3() -> ssl.SSLContext:
    """Return the trust store for an S3 endpoint: the file that boto3 goes by (``AWS_CA_BUNDLE``), else httpx's default.

    Raises:
        OSError: the file is missing, or has no certificates.
    """
    bundle = os.environ.get("AWS_CA_BUNDLE")
    return ssl.create_default_context(cafile=bundle) if bundle else _usual()


@functools.cache
def _usual() -> ssl.SSLContext:
    """Return httpx's default trust store. Loading it takes 20 ms and a megabyte: once, not for every client."""
    return httpx.create_ssl_context()


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__


def _version(*paths: Path) -> Version:
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


def require_tls(settings: Settings, host: str, named: str) -> None:
    """Refuse to serve without TLS where others may listen in, unless the site's settings allow it.

    Args:
        settings: of the site.
        host: the address to listen on.
        named: where it comes from, for the message: ``HOLDFAST_HOST``.

    Raises:
        SettingsError: it is no loopback address, there is no certificate, and the settings do not allow it.
    """
    if settings.tls_cert is None and not settings.allow_plaintext and not is_loopback(host):
        raise SettingsError(
            f"{named} = {host} is an address of a network, and there is no certificate: anyone on it can read "
            "the shared secret and may then run code on every machine. Set HOLDFAST_TLS_CERT, HOLDFAST_TLS_KEY and "
            "HOLDFAST_TLS_CA (docs/security.md, TLS); or listen on 127.0.0.1; or, on a network that you trust, "
            "set HOLDFAST_ALLOW_PLAINTEXT=true."
        )
