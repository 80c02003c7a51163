"""How a migrating consumer reaches ZooKeeper and who it is there: its properties, by Kafka's own names where Kafka has one (KIP-515).

Pure. Kafka's names for what a Java client alone has are refused where they say how secure a connection is; what is known to have no
effect is passed over (`old_settings`), and any other name that begins with `zookeeper.` is refused: it may be misspelt.
`zookeeper.sasl.*` and `zookeeper.digest` are ours: Kafka takes these from a JAAS file and from nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.consumer.migrating.old_settings import NO_EFFECT
from airflow_provider_kmigrate.consumer.migrating.values import cannot, flag, milliseconds

_ALL: Final = "zookeeper."
_SSL: Final = f"{_ALL}ssl."
_SASL: Final = f"{_ALL}sasl."
_TAKEN: Final = frozenset(
    {
        f"{_ALL}connect",
        f"{_ALL}session.timeout.ms",
        f"{_ALL}digest",
        f"{_ALL}set.acl",
        f"{_SSL}client.enable",
        f"{_SSL}keystore.location",
        f"{_SSL}keystore.password",
        f"{_SSL}keystore.type",
        f"{_SSL}truststore.location",
        f"{_SSL}truststore.type",
        f"{_SSL}endpoint.identification.algorithm",
        f"{_SASL}mechanism",
        f"{_SASL}username",
        f"{_SASL}password",
    }
)
_MECHANISMS: Final = ("DIGEST-MD5", "GSSAPI")


def zookeeper_of(own: Mapping[str, Any]) -> ZooKeeperSettings:
    """Raises `Refused` for what is not taken, without any value in the text."""
    _check(own)
    hosts, slash, chroot = str(own["zookeeper.connect"]).partition("/")
    use_tls = flag(own.get(f"{_SSL}client.enable", False))
    keys = own.get(f"{_SSL}keystore.location")
    mechanism = own.get(f"{_SASL}mechanism")
    return ZooKeeperSettings(
        hosts,
        f"{slash}{chroot}".rstrip("/"),
        session_timeout=milliseconds(own, "zookeeper.session.timeout.ms", 6000) / 1000.0,
        use_tls=use_tls,
        ca_file=_text(own, f"{_SSL}truststore.location"),
        cert_file=None if keys is None else str(keys),
        key_file=None if keys is None else str(keys),
        key_password=_text(own, f"{_SSL}keystore.password"),
        verify_hostname=str(own.get(f"{_SSL}endpoint.identification.algorithm", "https")).lower() == "https",
        digest=_text(own, "zookeeper.digest"),
        sasl_mechanism=None if mechanism is None else str(mechanism).upper(),
        sasl_user=_text(own, f"{_SASL}username"),
        sasl_password=_text(own, f"{_SASL}password"),
        set_acl=flag(own.get("zookeeper.set.acl", False)),
    )


def _text(own: Mapping[str, Any], name: str) -> str | None:
    value = own.get(name)
    return None if value is None else str(value)


def _check(own: Mapping[str, Any]) -> None:
    for name in sorted(own):
        if name.startswith((_SSL, _SASL)) and name not in _TAKEN:
            raise cannot(
                f"{name} is set.", "It would not be obeyed, and the connection be less safe than asked.", f"Leave {name} out."
            )
        if name.startswith(_ALL) and name not in _TAKEN | NO_EFFECT.keys():
            remedy = f"Leave it out, or write the one that is meant: {', '.join(sorted(_TAKEN))}."
            raise cannot(f"{name} is set.", "No setting is called so, and it would not be obeyed.", remedy)
    for store in ("keystore", "truststore"):
        kind = str(own.get(f"{_SSL}{store}.type", "PEM")).upper()
        if kind != "PEM" or str(own.get(f"{_SSL}{store}.location", "")).endswith((".jks", ".p12", ".pfx")):
            raise cannot(f"zookeeper.ssl.{store} is not PEM.", "Python reads no Java key store.", "Export it as PEM.")
    _check_identity(own)


def _check_identity(own: Mapping[str, Any]) -> None:
    mechanism = own.get(f"{_SASL}mechanism")
    if mechanism is not None and str(mechanism).upper() not in _MECHANISMS:
        raise cannot("zookeeper.sasl.mechanism is unknown.", "ZooKeeper has two.", f"One of {', '.join(_MECHANISMS)}.")
    named = own.get(f"{_SASL}username") and own.get(f"{_SASL}password")
    if str(mechanism).upper() == "DIGEST-MD5" and not named:
        raise cannot(
            "zookeeper.sasl has no user.", "DIGEST-MD5 is a user and a password.", "Set zookeeper.sasl.username and .password."
        )
    if ":" not in str(own.get("zookeeper.digest") or ":"):
        raise cannot("zookeeper.digest has no colon.", "It is user:password.", "Write the user, a colon, the password.")
    if not flag(own.get(f"{_SSL}client.enable", False)) and own.get(f"{_SSL}keystore.location"):
        raise cannot("zookeeper.ssl.client.enable is not set.", "Keys are given.", "Set zookeeper.ssl.client.enable to true.")
    if flag(own.get("zookeeper.set.acl", False)) and not any(
        (mechanism, own.get("zookeeper.digest"), own.get(f"{_SSL}keystore.location"))
    ):
        why = "Znodes are closed to all but their creator, who has to be somebody."
        raise cannot(
            "zookeeper.set.acl without an identity.",
            why,
            "Set zookeeper.sasl.*, zookeeper.digest or a key store, or leave it out.",
        )
