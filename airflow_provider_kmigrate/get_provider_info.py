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
        "hooks": _list_modules("hooks", "connections"),
        "operators": _list_modules(
            "operators",
            "approval",
            "goal",
            "groups",
            "migration",
            "probe",
            "audit_session",
            "spark_audit",
            "spark_check",
            "spark_jobs",
            "step",
        ),
        "sensors": _list_modules("sensors", "step", "waits"),
        "notifications": [f"{_PACKAGE}.notifications.messages.ClusterNotifier"],
        "extra-links": [
            f"{_PACKAGE}.links.pages.{name}" for name in ("AuditReportLink", "PlanPageLink", "PreflightPageLink", "RunbookLink")
        ],
        "triggers": _list_modules("triggers", "approval", "step"),
        "connection-types": [_zookeeper_connection(), _controller_connection(), _host_connection()],
        "cli": [f"{_PACKAGE}.airflow_cli.list_commands"],
        "config": {"kmigrate": {"description": settings, "options": _list_options()}},
    }


def _list_modules(room: str, *names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{room}.{name}" for name in names]}]


def _list_options() -> dict[str, Any]:
    return {
        "clusters_folder": _describe_option(
            "Folder of the cluster files; Airflow gets every DAG of every file in it.\n"
            "Empty: the folder `clusters` beside the DAGs folder.",
            "/etc/kmigrate/clusters",
        ),
        "folder": _describe_option(
            "Folder of the journals and backups of all migrations, shared by all workers.\n"
            "Empty: the folder `kmigrate` beside the DAGs folder.",
            "/var/lib/kmigrate",
        ),
        "store": _describe_option(
            "Object store behind `folder`, if workers share no file system: s3://CONNECTION@BUCKET/FOLDER, also gs and abfs.\n"
            "Then `folder` is each machine's copy. Empty: all workers share `folder`.",
            "s3://aws_default@bucket/kmigrate",
        ),
    }


def _describe_option(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "version_added": "0.1.0", "type": "string", "example": example, "default": ""}


def _zookeeper_connection() -> dict[str, Any]:
    placeholder_texts = {"host": "zk1:2181,zk2:2181,zk3:2181/kafka", "login": "digest or SASL user, if the znodes have ACLs"}
    seconds = {"default": 10, "exclusiveMinimum": 0}
    fields = {
        "chroot": _text_field("Chroot", "only if the connect string does not have it"),
        "session_timeout": _form_field("Session timeout", "number", "seconds", **seconds),
        "connect_timeout": _form_field("Connect timeout", "number", "seconds", **seconds),
        "use_tls": _form_field("Use TLS", "boolean", default=False),
        **_tls_fields(),
        "sasl_mechanism": _text_field(
            "SASL mechanism", "empty: login and password are a digest", enum=[None, "DIGEST-MD5", "GSSAPI"]
        ),
        **_kerberos_fields("zookeeper"),
    }
    return _describe_connection("zookeeper", "ZooKeeperHook", "ZooKeeper", fields, {"host": "Connect string"}, placeholder_texts)


def _controller_connection() -> dict[str, Any]:
    protocols = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    fields = {
        "protocol": _form_field(
            "Protocol", "string", "as quorum.security_protocol in the cluster file", enum=protocols, default="PLAINTEXT"
        ),
        **_tls_fields(),
        "sasl_mechanism": _text_field(
            "SASL mechanism", enum=[None, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]
        ),
        "token_endpoint": _text_field(
            "Token endpoint", "OAUTHBEARER: login and password are the client's; without it the password is a token"
        ),
        "scope": _text_field("Scope", "OAUTHBEARER"),
        "token_ca_file": _text_field("CA file of the token endpoint", "empty: those of the machine"),
        **_kerberos_fields("kafka"),
    }
    names, placeholder_texts = {"host": "Controller to test"}, {"host": "ctl0:9093", "login": "SASL user"}
    return _describe_connection("controller", "KRaftControllerHook", "KRaft controllers", fields, names, placeholder_texts)


def _kerberos_fields(service: str) -> dict[str, Any]:
    return {
        "kerberos_service": _text_field("Kerberos service", f"GSSAPI; empty: {service}"),
        "principal": _text_field("Principal", "GSSAPI; empty: the first of the keytab"),
        "keytab": _text_field("Keytab", "GSSAPI; empty: the ticket cache of Airflow's user"),
    }


def _host_connection() -> dict[str, Any]:
    variables = ["object", "null"]
    fields = {
        "environment": _form_field("Environment", variables, "variables that the commands of the cluster file get"),
        "secret_environment": _form_field("Secret environment", variables, "the same, for secret values"),
    }
    return _describe_connection("host", "BrokerHostHook", "Broker hosts", fields, {}, {}, hidden=("host", "login", "password"))


def _describe_connection(  # noqa: PLR0917  # a connection type's form has these parts
    name: str,
    hook: str,
    display_name: str,
    fields: dict[str, Any],
    relabeling: dict[str, str],
    placeholders: dict[str, str],
    hidden: tuple[str, ...] = (),
) -> dict[str, Any]:
    form = {"hidden-fields": ["schema", "port", *hidden], "relabeling": relabeling, "placeholders": placeholders}
    return {
        "connection-type": f"kmigrate_{name}",
        "hook-class-name": f"{_PACKAGE}.hooks.connections.{hook}",
        "hook-name": f"{display_name} (kmigrate)",
        "ui-field-behaviour": form,
        "conn-fields": fields,
    }


def _tls_fields() -> dict[str, Any]:
    return {
        "ca_file": _text_field("CA file", "PEM file with the CA certificates; empty: those of the system"),
        "cert_file": _text_field("Certificate file", "PEM file with kmigrate's certificate, if the other side asks for one"),
        "key_file": _text_field("Key file", "PEM file with kmigrate's key; empty: it is in the certificate file"),
        "key_password": _text_field("Key password", format="password"),
        "verify_hostname": _form_field(
            "Verify host names", "boolean", "the other side's certificate must have the host name", default=True
        ),
    }


def _text_field(label: str, description: str = "", **schema: Any) -> dict[str, Any]:
    return _form_field(label, ["string", "null"], description, **schema)


def _form_field(label: str, kind: str | list[str], description: str = "", **schema: Any) -> dict[str, Any]:
    described = {"description": description} if description else {}
    return {"label": label, **described, "schema": {"type": kind, **schema}}
