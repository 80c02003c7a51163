"""kmigrate's identity towards brokers, from librdkafka's properties: for the wire client, and for librdkafka itself.

Both clients have the same identity. librdkafka takes a fixed token only from a callback, and its wheel for Python speaks no GSSAPI.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from airflow_provider_kmigrate.clients.oauth import end_of_token
from airflow_provider_kmigrate.clients.sasl import GSSAPI, MECHANISMS, OAUTHBEARER, is_kerberos_installed
from airflow_provider_kmigrate.clients.settings import KafkaSettings, KerberosLogin, OAuthLogin, WireSecurity

TOKEN: Final = "sasl.oauthbearer.token"  # noqa: S105  # a name: kmigrate's own property for a fixed token
ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_ANY_TOKEN_S: Final = 3600.0  # how long librdkafka takes a token for valid that does not say it


def security_from_kafka(settings: KafkaSettings) -> WireSecurity:
    """The identity that librdkafka's properties give the admin client; files only, as librdkafka reads them."""
    get = settings.properties.get
    mechanism = get("sasl.mechanism") or get("sasl.mechanisms")
    key_store = get("ssl.keystore.location")
    return WireSecurity(
        protocol=get("security.protocol", "PLAINTEXT").upper(),
        ca_file=get("ssl.ca.location"),
        cert_file=get("ssl.certificate.location"),
        key_file=get("ssl.key.location"),
        key_password=get("ssl.keystore.password") if key_store else get("ssl.key.password"),
        verify_hostname=get("ssl.endpoint.identification.algorithm", "https") != "none",
        sasl_mechanism=mechanism,
        sasl_user=get("sasl.username"),
        sasl_password=get("sasl.password"),
        oauth=_read_oauth(settings.properties) if mechanism == OAUTHBEARER else None,
        kerberos=_read_kerberos(settings.properties) if mechanism == GSSAPI else None,
        key_store=key_store,
    )


def _read_oauth(properties: Mapping[str, str]) -> OAuthLogin | None:
    get = properties.get
    if get(TOKEN):
        return OAuthLogin(token=properties[TOKEN], extensions=_read_extensions(properties))
    if get("sasl.oauthbearer.method", "").lower() != "oidc" or not get(ENDPOINT):
        return None
    return OAuthLogin(
        endpoint=properties[ENDPOINT],
        client_id=get("sasl.oauthbearer.client.id") or get("sasl.oauthbearer.client.credentials.client.id") or "",
        client_secret=get("sasl.oauthbearer.client.secret") or get("sasl.oauthbearer.client.credentials.client.secret") or "",
        scope=get("sasl.oauthbearer.scope", ""),
        extensions=_read_extensions(properties),
        ca_file=get("https.ca.location"),
    )


def _read_extensions(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """`name=value,name=value`, as librdkafka has them."""
    entries = (entry.partition("=") for entry in properties.get("sasl.oauthbearer.extensions", "").split(","))
    return tuple((name.strip(), value.strip()) for name, _, value in entries if name.strip())


def _read_kerberos(properties: Mapping[str, str]) -> KerberosLogin:
    keytab = properties.get("sasl.kerberos.keytab")
    return KerberosLogin(
        properties.get("sasl.kerberos.service.name", "kafka"),
        properties.get("sasl.kerberos.principal") if keytab else None,
        keytab,
    )


def supports_identity(properties: Mapping[str, str]) -> bool:
    """True if the wire client supports the identity of these librdkafka properties, with what is installed here."""
    security = security_from_kafka(KafkaSettings(properties))
    in_files = not any(name.startswith("ssl.") and name.endswith(".pem") for name in properties)
    if not security.protocol.startswith("SASL_"):
        return in_files
    usable = security.oauth is not None or security.sasl_mechanism != OAUTHBEARER
    installed = security.sasl_mechanism != GSSAPI or is_kerberos_installed()
    return in_files and security.sasl_mechanism in MECHANISMS and usable and installed


def librdkafka_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The same properties as librdkafka takes them: with a callback instead of a fixed token."""
    token = properties.get(TOKEN)
    if not token:
        return dict(properties)
    others = {name: value for name, value in properties.items() if name not in {TOKEN, "sasl.oauthbearer.extensions"}}
    extensions = dict(_read_extensions(properties))

    def give_token(_: str) -> tuple[str, float, str, dict[str, str]]:
        return token, end_of_token(token) or time.time() + _ANY_TOKEN_S, "", extensions

    return {**others, "oauth_cb": give_token}


@cache
def has_kerberos_provider() -> bool:
    """Whether the librdkafka of this Python speaks GSSAPI; the wheels of confluent-kafka are built without it."""
    try:
        Producer({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": GSSAPI, "sasl.kerberos.kinit.cmd": "true"})
    except KafkaException:
        return False
    return True
