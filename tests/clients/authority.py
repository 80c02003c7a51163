"""Certificates made on the spot."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_DAYS = 90  # preflight asks for the soak's time and a day (B24)


class Authority:
    """A certificate authority in a folder; `issue` leaves `<name>.pem` and `<name>.key` there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.ca = str(self._write("ca.pem", self._sign("authority", self._key, ca=True)))

    def issue(self, name: str, host: str = "127.0.0.1") -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return str(self._write(f"{name}.pem", self._sign(name, key, host))), str(self._write(f"{name}.key", text))

    def issue_by_intermediate(self, name: str, days: int) -> tuple[str, str]:
        """As `issue`, with the certificate of an authority of `days` in between, which follows in the same file."""
        key, between = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain = self._sign(name, key, by=("between", between)) + self._sign("between", between, ca=True, days=days)
        return str(self._write(f"{name}.pem", chain)), str(self._write(f"{name}.key", text))

    def _sign(
        self,
        name: str,
        key: Any,
        host: str = "127.0.0.1",
        *,
        ca: bool = False,
        days: int = VALID_DAYS,
        by: tuple[str, Any] | None = None,
    ) -> bytes:
        now = dt.datetime.now(dt.UTC)
        issuer, signer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by[0])]), by[1]) if by else (self._name, self._key)
        builder = x509.CertificateBuilder(
            issuer,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            key.public_key(),
            x509.random_serial_number(),
            now - dt.timedelta(days=1),
            now + dt.timedelta(days=days),
        ).add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        return (
            builder.add_extension(alternative, critical=False)
            .sign(signer, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def server(
        self, host: str = "127.0.0.1", *, wants_client: bool = False, files: tuple[str, str] | None = None
    ) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*(files or self.issue("server", host)))
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED if wants_client else ssl.CERT_NONE
        return context
