"""Load a PKCS#12 key store into a TLS context; Python reads PEM files only. When a certificate of our own ends."""

from __future__ import annotations

import os
import ssl
from pathlib import Path


def load_key_store(context: ssl.SSLContext, path: str, password: str | None) -> None:
    """Use the key and the certificates of a PKCS#12 file. Raises OSError and ValueError if it cannot be read.

    The key goes through a file in memory, which no other process can open and which is gone at the end of the call.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - only a key store needs it
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415

    key, certificate, others = pkcs12.load_key_and_certificates(Path(path).read_bytes(), password.encode() if password else None)
    if key is None or certificate is None:
        raise ValueError("the key store has no key with a certificate")
    form = serialization.Encoding.PEM
    text = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    text += b"".join(entry.public_bytes(form) for entry in (certificate, *others))
    with open(os.memfd_create("key-store"), "wb") as memory:  # noqa: PTH123 - a descriptor
        memory.write(text)
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")


def find_certificate_end(path: str, password: str | None = None, *, is_store: bool = False) -> float | None:
    """When the first certificate of a PEM file or key store (`is_store`) ends, in seconds since the epoch; None if it has none, or cannot be read."""
    from cryptography import x509  # noqa: PLC0415 - only a connection with a certificate needs it
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415

    try:
        data = Path(path).read_bytes()
        if is_store:
            _, certificate, _ = pkcs12.load_key_and_certificates(data, password.encode() if password else None)
        else:
            certificate = x509.load_pem_x509_certificates(data)[0]
    except (OSError, ValueError):
        return None  # what is wrong with it is said at the first connection
    return certificate.not_valid_after_utc.timestamp() if certificate else None
