"""The one user of a ZooKeeper that lets clients in by SASL DIGEST-MD5 only, and the JAAS files by which it and Kafka's nodes log in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from tests.kit.localcluster.plan import Plan

USER: Final = "kafka"
PASSWORD: Final = "canary-5a51d1"  # of a cluster on this machine
SASL_ONLY: Final = {
    "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    "sessionRequireClientSASLAuth": "true",
}
_MECHANISM: Final = "DIGEST-MD5"


def digest_login(user: str, password: str) -> tuple[str, str]:
    """Of a server that knows one user, and of that user, as JAAS sections have it."""
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    return f'{module} user_{user}="{password}";', f'{module} username="{user}" password="{password}";'


def write_jaas(path: Path, **sections: str) -> str:
    """Write the sections (`Client`, `Server`) of a JAAS file; returns Java's switch that names it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name} {{\n {login}\n}};\n" for name, login in sections.items()))
    return f"-Djava.security.auth.login.config={path}"


def server_switches(plan: Plan, folder: Path, password: str = PASSWORD) -> tuple[str, ...]:
    """Java's switches of the ZooKeeper server in `folder`, whose file is written; none without a login."""
    return (write_jaas(folder / "jaas.conf", Server=digest_login(USER, password)[0]),) if plan.shape.zookeeper_login else ()


def client_switches(plan: Plan, password: str = PASSWORD) -> tuple[str, ...]:
    """Those of every broker and controller."""
    path = plan.folder / "client-jaas.conf"
    return (write_jaas(path, Client=digest_login(USER, password)[1]),) if plan.shape.zookeeper_login else ()


def settings(plan: Plan, chroot: str = "") -> ZooKeeperSettings:
    """Of kmigrate's client."""
    found = ZooKeeperSettings(plan.zookeeper, chroot)
    if not plan.shape.zookeeper_login:
        return found
    return replace(found, sasl_mechanism=_MECHANISM, sasl_user=USER, sasl_password=PASSWORD)


def kazoo_options(plan: Plan) -> dict[str, Any]:
    """Of kazoo's own client."""
    login = {"mechanism": _MECHANISM, "username": USER, "password": PASSWORD}
    return {"sasl_options": login} if plan.shape.zookeeper_login else {}


def connection(plan: Plan) -> dict[str, Any]:
    """Of Airflow's connection: the user, and what `extra` has more."""
    return {"login": USER, "password": PASSWORD, "extra": {"sasl_mechanism": _MECHANISM}} if plan.shape.zookeeper_login else {}
