"""TLS towards brokers, controllers and ZooKeeper: the context, and what is missing if the two sides do not agree (U09)."""

from __future__ import annotations

import contextlib
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_kmigrate.clients.key_stores import load_key_store
from airflow_provider_kmigrate.clients.settings import WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.core.cluster_state.model import Certificate, Reason
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unreachable

if TYPE_CHECKING:
    from cryptography import x509

#: Reasons in OpenSSL's words that blame our certificate and not the connection: alerts of the other side.
_REFUSALS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "DECRYPT_ERROR")
#: Those of a port that answers something else than TLS, or hangs up.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_PEM: Final = {"certificate": b"CERTIFICATE-----", "key": b"PRIVATE KEY-----"}  # TRUSTED CERTIFICATE and RSA PRIVATE KEY, too
_SEQUENCE: Final = b"\x30"  # with which a PKCS#12 file begins
#: Parts of a subject that RFC 2253 has a word for; Java writes the others as numbers and bytes. Values without anything to escape.
_KEYWORDS: Final = frozenset({"CN", "L", "ST", "O", "OU", "C", "STREET", "DC", "UID"})
_PLAIN: Final = re.compile(r"[\w.@*:/()'-](?:[\w.@*:/()' -]*[\w.@*:/()'-])?", re.ASCII)
_OTHER_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def tls_context(security: WireSecurity | ZooKeeperSettings) -> ssl.SSLContext:
    """A context that verifies the other side; raises `AuthenticationFailed` if a file cannot be used."""
    try:
        context = make_context(security.ca_file)
        context.check_hostname = security.verify_hostname
        if isinstance(security, WireSecurity) and security.key_store:
            load_key_store(context, security.key_store, security.key_password)
        elif security.cert_file:
            context.load_cert_chain(security.cert_file, security.key_file, security.key_password or refuse_to_ask)
    except (OSError, ValueError) as error:
        key_store = security.key_store if isinstance(security, WireSecurity) else None
        files = ", ".join(filter(None, (security.ca_file, security.cert_file, security.key_file, key_store)))
        why = str(error)
        with contextlib.suppress(OSError):
            why = _explain_file(security, error)
        text = f"TLS: the files cannot be used ({files}): {why}"
        raise AuthenticationFailed(text, (Reason("U09", text),)) from error
    return context


def _explain_file(security: WireSecurity | ZooKeeperSettings, error: Exception) -> str:
    """Which file it is, and what is wrong with it: OpenSSL says `PEM lib` of most. Raises `OSError`."""
    if not isinstance(error, ssl.SSLError | ValueError):
        return str(error)
    if isinstance(security, WireSecurity) and security.key_store:
        is_store = Path(security.key_store).read_bytes()[:1] == _SEQUENCE
        other = f"{security.key_store} is no PKCS#12 file; keytool -importkeystore -deststoretype PKCS12 makes one of a JKS file"
        return str(error) if is_store else other
    key_file = security.key_file or security.cert_file
    needed = ((security.ca_file, "certificate"), (security.cert_file, "certificate"), (key_file, "key"))
    for path, what in needed:
        if path and _PEM[what] not in Path(path).read_bytes():
            return f"{path} has no {what} (PEM)"
    if key_file and b"ENCRYPTED" in Path(key_file).read_bytes():
        missing = "the password does not open it" if security.key_password else "there is no password for it"
        return f"the key in {key_file} is encrypted, and {missing}"
    return f"the key in {key_file} is not that of the certificate" if "KEY_VALUES_MISMATCH" in str(error) else str(error)


def make_context(ca_file: str | None) -> ssl.SSLContext:
    """A context that trusts the authorities of this PEM file alone, or (None) those of the machine. Raises `OSError` for a file without any."""
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13 sets it: certificates of many private authorities, which Java takes, would fail.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def find_chain_end(connection: ssl.SSLSocket) -> float:
    """When the other side's certificate, or one of an authority between it and the trusted one, ends, in seconds since the epoch."""
    # Python's own name for it is not public before 3.13. Java does not ask whether the last one, the anchor, has ended.
    chain = [entry.get_info() for entry in connection._sslobj.get_verified_chain()]  # type: ignore[attr-defined]  # noqa: SLF001
    return min(float(ssl.cert_time_to_seconds(str(entry["notAfter"]))) for entry in chain[:-1] or chain)


def read_certificate(connection: ssl.SSLSocket) -> Certificate:
    """The other side's certificate, with the end of its chain."""
    from cryptography import x509  # noqa: PLC0415 - only a connection with TLS needs it

    shown = connection.getpeercert(binary_form=True)
    subject = x509.load_der_x509_certificate(shown).subject if shown else None
    return Certificate(find_chain_end(connection), name_subject(subject) if subject else None)


def name_subject(subject: x509.Name) -> str | None:
    """A subject as Java's X500Principal writes it (RFC 2253); None for what it writes as bytes, or with escapes."""
    is_plain = all(
        len(part) == 1 and attribute.rfc4514_attribute_name in _KEYWORDS and _PLAIN.fullmatch(str(attribute.value))
        for part in subject.rdns
        for attribute in part
    )
    return subject.rfc4514_string() if is_plain else None


def refuse_to_ask() -> str:
    """The password of a key that has none here: without this OpenSSL would ask on the terminal, and a task would hang."""
    return ""


def explain_failure(error: ssl.SSLError, label: str = "") -> KMigrateError:
    """A failed handshake as an error of ours, which names what is missing: `AuthenticationFailed`, or `Unreachable` if TLS itself failed."""
    reason, begin = error.reason or str(error), f"{label}: " if label else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        is_of_other = error.verify_code in _OTHER_NAME
        what = "is not for this host" if is_of_other else "is not accepted here, by the authorities of this connection"
        text = f"{begin}TLS: the other side's certificate {what}: {error.verify_message}"
        return AuthenticationFailed(text, (Reason("U09", text),))
    if any(word in reason for word in _REFUSALS):
        text = f"{begin}TLS: the other side refuses this connection's certificate, or demands one and there is none ({reason})"
        return AuthenticationFailed(text, (Reason("U09", text),))
    what = "what answers at this port speaks no TLS, or hung up" if any(word in reason for word in _NO_TLS) else "it failed"
    return Unreachable(f"{begin}TLS: {what} ({reason})")
