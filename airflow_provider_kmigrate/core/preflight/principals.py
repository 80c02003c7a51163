"""By which name a node is known on a listener, as far as files tell."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_kmigrate.core.files.config_matrix import references, setting

BUILDER = "principal.builder.class"
_USERNAME = re.compile(r"""\busername\s*=\s*(?:"([^"]*)"|'([^']*)')""")


def principal(client: Mapping[str, str], server: Mapping[str, str], listener: str, mechanism: str) -> str | None:
    """The name, such as `User:broker`, of who connects with the keys `client` to a `listener` of `server`; None where they do not tell.

    `mechanism` counts for SASL only.
    """
    if setting(server, BUILDER):
        return None
    security = security_of(server, listener)
    if security == "PLAINTEXT" or (security == "SSL" and _asks_nobody(server, listener)):
        return "User:ANONYMOUS"
    return _sasl_user(client, listener, mechanism) if security.startswith("SASL") else None


def security_of(keys: Mapping[str, str], listener: str) -> str:
    """The security protocol of a listener; without a map it is the listener's own name."""
    listed = (entry.partition(":") for entry in (setting(keys, "listener.security.protocol.map") or "").split(","))
    protocols = {name.strip().upper(): security.strip().upper() for name, _, security in listed}
    return protocols.get(listener.upper(), listener.upper())


def super_users(keys: Mapping[str, str]) -> set[str] | None:
    """Who may everything; None where only a reference says it."""
    value = setting(keys, "super.users") or ""
    return None if references(value) else {user.strip() for user in value.split(";")} - {""}


def login_key(listener: str, mechanism: str) -> str:
    """The key that holds the login of a listener. Kafka ignores one without this prefix on servers."""
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"


def _asks_nobody(keys: Mapping[str, str], listener: str) -> bool:
    """Whether a TLS listener takes clients without a certificate, who have no name then."""
    own = setting(keys, f"listener.name.{listener.lower()}.ssl.client.auth")
    return (own or setting(keys, "ssl.client.auth") or "none").lower() == "none"


def _sasl_user(keys: Mapping[str, str], listener: str, mechanism: str) -> str | None:
    match = _USERNAME.search(setting(keys, login_key(listener, mechanism)) or "")
    known = match is not None and mechanism.upper() != "GSSAPI" and not references(match[0])
    return f"User:{match[1] or match[2]}" if match and known else None
