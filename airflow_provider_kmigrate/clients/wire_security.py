"""Who we are to one node: the TLS context and the SASL exchange of the wire client.

Certificates are always verified; `verify_hostname` only decides whether the name must match too. SASL speaks PLAIN and
SCRAM-SHA-256/512 (kafka-python's own mechanism classes) inside SaslHandshake v1 and SaslAuthenticate, KIP-43 and KIP-152.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from airflow_provider_kmigrate.clients.kafka_errors import check
from airflow_provider_kmigrate.clients.settings import KafkaSettings, WireSecurity
from airflow_provider_kmigrate.exceptions import AuthenticationFailed

Call = Callable[[Any], Any]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MAX_ROUNDS = 3  # PLAIN needs one, SCRAM two


def from_kafka(settings: KafkaSettings) -> WireSecurity:
    """The same identity as librdkafka's properties give the admin client; PEM files only, as librdkafka reads them."""
    get = settings.properties.get
    return WireSecurity(
        protocol=get("security.protocol", "PLAINTEXT").upper(),
        ca_file=get("ssl.ca.location"),
        cert_file=get("ssl.certificate.location"),
        key_file=get("ssl.key.location"),
        key_password=get("ssl.key.password"),
        verify_hostname=get("ssl.endpoint.identification.algorithm", "https") != "none",
        sasl_mechanism=get("sasl.mechanism") or get("sasl.mechanisms"),
        sasl_user=get("sasl.username"),
        sasl_password=get("sasl.password"),
    )


def tls_context(security: WireSecurity) -> ssl.SSLContext | None:
    """The context for SSL and SASL_SSL, None for the plain protocols; raises AuthenticationFailed where a file cannot be used."""
    if security.protocol not in {"SSL", "SASL_SSL"}:
        return None
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        context.check_hostname = security.verify_hostname
        if security.cert_file:
            context.load_cert_chain(security.cert_file, security.key_file, security.key_password or _no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (security.ca_file, security.cert_file, security.key_file)))
        raise AuthenticationFailed(f"the TLS files cannot be used ({files}): {error}") from error
    return context


def authenticate(call: Call, security: WireSecurity, where: str) -> None:
    """Run the SASL exchange over `call`, which sends one request and returns its answer; nothing to do without SASL."""
    if not security.protocol.startswith("SASL_"):
        return
    mechanism = _mechanism(security)
    answer = call(SaslHandshakeRequest(mechanism=security.sasl_mechanism, version=1))
    check(answer.error_code, f"{where} SaslHandshake", f"it offers {', '.join(answer.mechanisms)}")
    for _ in range(_MAX_ROUNDS):
        answer = call(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes(), version=1))
        check(answer.error_code, f"{where} SaslAuthenticate", answer.error_message)
        _believe(mechanism, answer.auth_bytes, where)
        if mechanism.is_done():
            return
    raise AuthenticationFailed(f"{where}: SASL {security.sasl_mechanism} did not end after {_MAX_ROUNDS} rounds")


def _mechanism(security: WireSecurity) -> Any:
    if security.sasl_mechanism not in MECHANISMS:
        known = ", ".join(MECHANISMS)
        raise AuthenticationFailed(f"SASL mechanism {security.sasl_mechanism} is not spoken here; use one of {known}")
    if not security.sasl_user or not security.sasl_password:
        raise AuthenticationFailed(f"SASL {security.sasl_mechanism} needs a user and a password in the Kafka connection")
    return get_sasl_mechanism(security.sasl_mechanism)(
        sasl_mechanism=security.sasl_mechanism,
        sasl_plain_username=security.sasl_user,
        sasl_plain_password=security.sasl_password,
    )


def _believe(mechanism: Any, proof: bytes, where: str) -> None:
    try:
        mechanism.receive(proof)
    except (ValueError, KeyError) as error:  # SCRAM: the node must prove that it knows the password too
        raise AuthenticationFailed(f"{where}: the node's SASL answer proves nothing: {error}") from error


def _no_password() -> str:
    """Without it OpenSSL would ask on the terminal, and a task would hang there."""
    return ""
