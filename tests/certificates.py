"""A certification authority for tests, and certificates of it."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

AGENT_NAME = "agent.holdfast"
"""The name by which all agents of a site may share a certificate: their addresses come and go."""
_DAY = datetime.timedelta(days=1)


class Authority:
    """Writes its own certificate to ``folder/ca.pem`` and those that it signs beside it."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        made = self._builder(self._name, self._key.public_key()).add_extension(constraints, critical=True)
        self.ca = folder / "ca.pem"
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        self.ca.write_bytes(self.pem)

    def certify(
        self, name: str, *names: str, cert: str = "cert.pem", key: str = "key.pem"
    ) -> tuple[Path, Path]:
        """Certificate and key for hosts or addresses ``names``; over those of before, in one move each."""
        own = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternatives = x509.SubjectAlternativeName([_name(each) for each in names])
        made = self._builder(subject, own.public_key()).add_extension(alternatives, critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        _place(self.folder / cert, signed.public_bytes(serialization.Encoding.PEM))
        _place(
            self.folder / key,
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return self.folder / cert, self.folder / key

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=public,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _DAY,
            not_valid_after=now + _DAY,
        )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _place(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(new, path)
