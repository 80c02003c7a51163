"""What Airflow reads of this package at every start, before its configuration is ready: literals only, no imports."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "Kafka migration"
_PACKAGE = "airflow_provider_kmigrate"


def get_provider_info() -> dict[str, Any]:
    """The package as provider_info.schema.json describes one. Brokers use the Kafka provider's connection type, `kafka`."""
    url = "https://kafka.apache.org/39/documentation.html#kraft_zk_migration"
    settings = "Settings of the provider that migrates Kafka clusters."
    return {
        "package-name": "airflow-provider-kmigrate",
        "name": "Kafka migration",
        "description": "Move Kafka clusters from ZooKeeper to KRaft, live, one verified step at a time.",
        "integrations": [{"integration-name": _INTEGRATION, "external-doc-url": url, "tags": ["apache"]}],
        "hooks": _modules("hooks", "connections", "kafka_admin"),
        "operators": _modules(
            "operators", "approval", "goal", "groups", "migration", "probe", "spark_audit", "spark_jobs", "step"
        ),
        "sensors": _modules("sensors", "step", "waits"),
        "triggers": _modules("triggers", "approval", "step"),
        "connection-types": [_zookeeper(), _controller(), _host()],
        "config": {"kmigrate": {"description": settings, "options": _options()}},
    }


def _modules(room: str, *names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{room}.{name}" for name in names]}]


def _options() -> dict[str, Any]:
    return {
        "clusters_folder": _option(
            "Folder of the cluster files; Airflow gets every DAG of every file in it.\n"
            "Empty: the folder `clusters` beside the DAGs folder.",
            "/etc/kmigrate/clusters",
        ),
        "folder": _option(
            "Folder of the journals and backups of all migrations, shared by all workers.\n"
            "Empty: the folder `kmigrate` beside the DAGs folder.",
            "/var/lib/kmigrate",
        ),
    }


def _option(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "version_added": "0.1.0", "type": "string", "example": example, "default": ""}


def _zookeeper() -> dict[str, Any]:
    places = {"host": "zk1:2181,zk2:2181,zk3:2181/kafka", "login": "digest or SASL user, if the znodes have ACLs"}
    seconds = {"default": 10, "exclusiveMinimum": 0}
    fields = {
        "chroot": _text("Chroot", "only if the connect string does not have it"),
        "session_timeout": _field("Session timeout", "number", "seconds", **seconds),
        "connect_timeout": _field("Connect timeout", "number", "seconds", **seconds),
        "use_tls": _field("Use TLS", "boolean", default=False),
        **_tls(),
        "sasl_mechanism": _text("SASL mechanism", "empty: login and password are a digest", enum=[None, "DIGEST-MD5", "GSSAPI"]),
    }
    return _connection("zookeeper", "ZooKeeperHook", "ZooKeeper", fields, {"host": "Connect string"}, places)


def _controller() -> dict[str, Any]:
    protocols = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    fields = {
        "protocol": _field(
            "Protocol", "string", "as quorum.security_protocol in the cluster file", enum=protocols, default="PLAINTEXT"
        ),
        **_tls(),
        "sasl_mechanism": _text("SASL mechanism", enum=[None, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
    }
    names, places = {"host": "Controller to test"}, {"host": "ctl0:9093", "login": "SASL user"}
    return _connection("controller", "KRaftControllerHook", "KRaft controllers", fields, names, places)


def _host() -> dict[str, Any]:
    variables = ["object", "null"]
    fields = {
        "environment": _field("Environment", variables, "variables that the commands of the cluster file get"),
        "secret_environment": _field("Secret environment", variables, "the same, for secret values"),
    }
    return _connection("host", "BrokerHostHook", "Broker hosts", fields, {}, {}, hidden=("host", "login", "password"))


def _connection(  # noqa: PLR0917  # a connection type's form has these parts
    name: str,
    hook: str,
    shown: str,
    fields: dict[str, Any],
    relabeling: dict[str, str],
    placeholders: dict[str, str],
    hidden: tuple[str, ...] = (),
) -> dict[str, Any]:
    form = {"hidden-fields": ["schema", "port", *hidden], "relabeling": relabeling, "placeholders": placeholders}
    return {
        "connection-type": f"kmigrate_{name}",
        "hook-class-name": f"{_PACKAGE}.hooks.connections.{hook}",
        "hook-name": f"{shown} (kmigrate)",
        "ui-field-behaviour": form,
        "conn-fields": fields,
    }


def _tls() -> dict[str, Any]:
    return {
        "ca_file": _text("CA file", "PEM file with the CA certificates; empty: those of the system"),
        "cert_file": _text("Certificate file", "PEM file with kmigrate's certificate, if the other side asks for one"),
        "key_file": _text("Key file", "PEM file with kmigrate's key; empty: it is in the certificate file"),
        "key_password": _text("Key password", format="password"),
        "verify_hostname": _field(
            "Verify host names", "boolean", "the other side's certificate must have the host name", default=True
        ),
    }


def _text(label: str, description: str = "", **schema: Any) -> dict[str, Any]:
    return _field(label, ["string", "null"], description, **schema)


def _field(label: str, kind: str | list[str], description: str = "", **schema: Any) -> dict[str, Any]:
    described = {"description": description} if description else {}
    return {"label": label, **described, "schema": {"type": kind, **schema}}
