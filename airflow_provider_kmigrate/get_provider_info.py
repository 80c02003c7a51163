"""What Airflow reads of this package at every start, before its configuration is ready: literals only, no imports."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

_INTEGRATION = "Kafka migration"
_TLS_FIELDS = {
    "ca_file": {
        "label": "CA file",
        "description": "PEM file with the CA certificates; empty: those of the system",
        "schema": {"type": ["string", "null"]},
    },
    "cert_file": {
        "label": "Certificate file",
        "description": "PEM file with kmigrate's certificate, if the other side asks for one",
        "schema": {"type": ["string", "null"]},
    },
    "key_file": {
        "label": "Key file",
        "description": "PEM file with kmigrate's key; empty: it is in the certificate file",
        "schema": {"type": ["string", "null"]},
    },
    "key_password": {"label": "Key password", "schema": {"type": ["string", "null"], "format": "password"}},
    "verify_hostname": {
        "label": "Verify host names",
        "description": "the other side's certificate must have the host name",
        "schema": {"type": "boolean", "default": True},
    },
}
_ZOOKEEPER = {
    "connection-type": "kmigrate_zookeeper",
    "hook-class-name": "airflow_provider_kmigrate.hooks.connections.ZooKeeperHook",
    "hook-name": "ZooKeeper (kmigrate)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "port"],
        "relabeling": {"host": "Connect string"},
        "placeholders": {
            "host": "zk1:2181,zk2:2181,zk3:2181/kafka",
            "login": "digest or SASL user, if the znodes have ACLs",
        },
    },
    "conn-fields": {
        "chroot": {
            "label": "Chroot",
            "description": "only if the connect string does not have it",
            "schema": {"type": ["string", "null"]},
        },
        "session_timeout": {
            "label": "Session timeout",
            "description": "seconds",
            "schema": {"type": "number", "default": 10, "exclusiveMinimum": 0},
        },
        "connect_timeout": {
            "label": "Connect timeout",
            "description": "seconds",
            "schema": {"type": "number", "default": 10, "exclusiveMinimum": 0},
        },
        "use_tls": {"label": "Use TLS", "schema": {"type": "boolean", "default": False}},
        **_TLS_FIELDS,
        "sasl_mechanism": {
            "label": "SASL mechanism",
            "description": "empty: login and password are a digest",
            "schema": {"type": ["string", "null"], "enum": [None, "DIGEST-MD5", "GSSAPI"]},
        },
    },
}
_CONTROLLER = {
    "connection-type": "kmigrate_controller",
    "hook-class-name": "airflow_provider_kmigrate.hooks.connections.KRaftControllerHook",
    "hook-name": "KRaft controllers (kmigrate)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "port"],
        "relabeling": {"host": "Controller to test"},
        "placeholders": {"host": "ctl0:9093", "login": "SASL user"},
    },
    "conn-fields": {
        "protocol": {
            "label": "Protocol",
            "description": "as quorum.security in the cluster file",
            "schema": {"type": "string", "enum": ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], "default": "PLAINTEXT"},
        },
        **_TLS_FIELDS,
        "sasl_mechanism": {
            "label": "SASL mechanism",
            "schema": {"type": ["string", "null"], "enum": [None, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]},
        },
    },
}
_HOST = {
    "connection-type": "kmigrate_host",
    "hook-class-name": "airflow_provider_kmigrate.hooks.connections.BrokerHostHook",
    "hook-name": "Broker hosts (kmigrate)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "port", "host", "login", "password"],
        "relabeling": {},
        "placeholders": {},
    },
    "conn-fields": {
        "environment": {
            "label": "Environment",
            "description": "variables that the commands of the cluster file get",
            "schema": {"type": ["object", "null"]},
        },
        "secret_environment": {
            "label": "Secret environment",
            "description": "the same, for secret values",
            "schema": {"type": ["object", "null"]},
        },
    },
}


def _modules(room: str, *names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": [f"airflow_provider_kmigrate.{room}.{name}" for name in names]}]


_PROVIDER: dict[str, Any] = {
    "package-name": "airflow-provider-kmigrate",
    "name": "Kafka migration",
    "description": "Move Kafka clusters from ZooKeeper to KRaft, live, one verified step at a time.",
    "integrations": [
        {
            "integration-name": _INTEGRATION,
            "external-doc-url": "https://kafka.apache.org/39/documentation.html#kraft_zk_migration",
            "tags": ["apache"],
        }
    ],
    "hooks": _modules("hooks", "connections"),
    "operators": _modules("operators", "approval", "groups", "migration", "probe", "spark_audit", "spark_jobs", "step"),
    "sensors": _modules("sensors", "step", "waits", "window"),
    "triggers": _modules("triggers", "step"),
    "connection-types": [_ZOOKEEPER, _CONTROLLER, _HOST],
    "config": {
        "kmigrate": {
            "description": "Settings of the provider that migrates Kafka clusters.",
            "options": {
                "clusters_folder": {
                    "description": "Folder of the cluster files; Airflow gets every DAG of every file in it.\n"
                    "Empty: the folder `clusters` beside the DAGs folder.",
                    "version_added": "0.1.0",
                    "type": "string",
                    "example": "/etc/kmigrate/clusters",
                    "default": "",
                },
                "folder": {
                    "description": "Folder of the journals and backups of all migrations, shared by all workers.\n"
                    "Empty: the folder `kmigrate` beside the DAGs folder.",
                    "version_added": "0.1.0",
                    "type": "string",
                    "example": "/var/lib/kmigrate",
                    "default": "",
                },
            },
        },
    },
}


def get_provider_info() -> dict[str, Any]:
    """The package as provider_info.schema.json describes one. Brokers use the Kafka provider's connection type, `kafka`."""
    return deepcopy(_PROVIDER)
