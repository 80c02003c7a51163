"""Connections and listeners with too little protection, and what preflight finds of each."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.model import ConnectionFacts
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_around import LOGIN, PLAIN, SASL_CONTROLLERS, Row, everywhere, written_1
from tests.core.preflight_views import Change, both, known, spec

PLAIN_MAP = "PLAINTEXT:PLAINTEXT"
TLS_ONLY = {
    "listeners": "CLIENTS://:9093",
    "listener_security_protocol_map": "CLIENTS:SSL",
    "inter_broker_listener_name": "CLIENTS",
    "ssl_client_auth": "required",
}

BLOCK, WARN = Severity.BLOCK, Severity.WARN
ANY_NAME = {"ssl_endpoint_identification_algorithm": ""}
CONTROLLERS_ANY_NAME = {"listener_name_controller_ssl_endpoint_identification_algorithm": ""}
SSL_CONTROLLERS = spec(controller_security="SSL")
READABLE = {  # PLAIN between brokers, without TLS
    "inter_broker_listener_name": "INTERNAL",
    "listeners": "INTERNAL://:9092",
    "listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT",
    "sasl_enabled_mechanisms": "PLAIN",
    "sasl_mechanism_inter_broker_protocol": "PLAIN",
    "listener_name_internal_plain_sasl_jaas_config": LOGIN,
}
SCRAM_BETWEEN = {
    **READABLE,
    "sasl_enabled_mechanisms": "SCRAM-SHA-256",
    "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256",
    "sasl_mechanism_controller_protocol": "PLAIN",
    "listener_name_controller_plain_sasl_jaas_config": LOGIN,
}
IN_CLEAR = spec(controller_security="SASL_PLAINTEXT")
ZOOKEEPER_TLS = {"zookeeper_ssl_client_enable": "true"}


def properties(**keys: str) -> Change:
    """What `quorum.properties` of the cluster file says, beside a listener that is SSL."""
    return spec(controller_security="SSL", controller_properties={key.replace("_", "."): value for key, value in keys.items()})


def plain_as_written(security: str) -> Change:
    return spec(controller_security=security, controller_properties={"sasl.mechanism.controller.protocol": "PLAIN"})


LISTENERS: list[Row] = [
    ("controllers' listener prepared as SASL_SSL, default in the cluster file", everywhere(listener_security_protocol_map=f"{PLAIN_MAP},CONTROLLER:SASL_SSL"), ["B9e"]),
    ("controllers' listener prepared as in the cluster file", both(everywhere(listener_security_protocol_map=f"{PLAIN_MAP},CONTROLLER:SSL"), spec(controller_security="SSL")), []),
    ("controllers' listener prepared in the clear, SSL in the cluster file", both(everywhere(listener_security_protocol_map=f"{PLAIN_MAP},CONTROLLER:PLAINTEXT"), spec(controller_security="SSL")), []),
    ("controllers' listener prepared in one file", written_1(listener_security_protocol_map=f"{PLAIN_MAP},controller:ssl"), ["B9e"]),
    ("TLS brokers, nothing said of the controllers", both(everywhere(**TLS_ONLY), spec(controller_security_written=False)), ["B9e"]),
    ("TLS between brokers, a plain listener for clients, nothing said of the controllers", both(everywhere(**TLS_ONLY | {"listeners": "CLIENTS://:9093,OLD://:9092", "listener_security_protocol_map": "CLIENTS:SSL,OLD:PLAINTEXT"}), spec(controller_security_written=False)), ["B9e"]),
    ("nothing between brokers, nothing said of the controllers", spec(controller_security_written=False), []),
    ("TLS brokers, controllers in the clear as written", everywhere(**TLS_ONLY), []),
]  # fmt: skip


ROWS: list[tuple[str, Change, list[Severity]]] = [
    ("names verified by default", both(everywhere(**TLS_ONLY), SSL_CONTROLLERS), []),
    ("names verified as written", both(everywhere(**TLS_ONLY, ssl_endpoint_identification_algorithm="HTTPS"), SSL_CONTROLLERS), []),
    ("names by reference", both(everywhere(**TLS_ONLY, config_providers="env", ssl_endpoint_identification_algorithm="${env:A}"), SSL_CONTROLLERS), []),
    ("no name verified, between brokers and by controllers", both(everywhere(**TLS_ONLY, **ANY_NAME), SSL_CONTROLLERS), [WARN, WARN]),
    ("no name verified, with a word for it", both(everywhere(**TLS_ONLY, ssl_endpoint_identification_algorithm="none"), SSL_CONTROLLERS), [WARN, WARN]),
    ("no name verified by one broker", both(everywhere(**TLS_ONLY), both(written_1(**TLS_ONLY, **ANY_NAME), SSL_CONTROLLERS)), [WARN, WARN]),
    ("no TLS between brokers or controllers", everywhere(**ANY_NAME), []),
    ("no TLS between brokers, TLS of controllers", both(everywhere(**ANY_NAME), SSL_CONTROLLERS), [WARN]),
    ("names of controllers alone not verified, by the files", both(everywhere(**TLS_ONLY, **CONTROLLERS_ANY_NAME), SSL_CONTROLLERS), [BLOCK]),
    ("the same, as the cluster file says", both(everywhere(**TLS_ONLY, **CONTROLLERS_ANY_NAME), properties(listener_name_controller_ssl_endpoint_identification_algorithm="")), [WARN]),
    ("names not verified by controllers, as the cluster file says", both(everywhere(**TLS_ONLY), properties(**ANY_NAME)), [WARN]),
    ("names of controllers alone not verified, no TLS there", everywhere(**TLS_ONLY, **CONTROLLERS_ANY_NAME), []),
    ("names of brokers verified, others' not", both(everywhere(**TLS_ONLY, **ANY_NAME, listener_name_clients_ssl_endpoint_identification_algorithm="https"), SSL_CONTROLLERS), []),
    ("PLAIN over TLS", both(everywhere(**PLAIN), SASL_CONTROLLERS), []),
    ("PLAIN in the clear everywhere", both(everywhere(**READABLE), IN_CLEAR), [WARN, WARN]),
    ("PLAIN in the clear for clients only", everywhere(listeners="A://:9092,B://:9093", listener_security_protocol_map="A:PLAINTEXT,B:SASL_PLAINTEXT", inter_broker_listener_name="A", listener_name_b_sasl_enabled_mechanisms="SCRAM-SHA-256, plain"), [WARN]),
    ("SCRAM in the clear", everywhere(**READABLE | {"sasl_enabled_mechanisms": "SCRAM-SHA-256", "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256"}), []),
    ("PLAIN over TLS between brokers, in the clear to controllers", both(everywhere(**PLAIN), IN_CLEAR), [BLOCK]),
    ("the same, as the cluster file says", both(everywhere(**PLAIN), plain_as_written("SASL_PLAINTEXT")), [WARN]),
    ("SCRAM between brokers, PLAIN in the clear to controllers", both(everywhere(**SCRAM_BETWEEN), IN_CLEAR), [BLOCK]),
    ("SCRAM between brokers, PLAIN over TLS to controllers", both(everywhere(**SCRAM_BETWEEN), SASL_CONTROLLERS), []),
    ("nothing between brokers, PLAIN in the clear to controllers", both(everywhere(sasl_mechanism_controller_protocol="PLAIN", listener_name_controller_plain_sasl_jaas_config=LOGIN), IN_CLEAR), [WARN]),
    ("SASL between brokers, TLS without certificates to controllers", both(everywhere(**PLAIN), SSL_CONTROLLERS), [BLOCK]),
    ("certificates between brokers, not to controllers, by the files", both(everywhere(**TLS_ONLY, listener_name_controller_ssl_client_auth="requested"), SSL_CONTROLLERS), [BLOCK]),
    ("the same, as the cluster file says", both(everywhere(**TLS_ONLY), properties(ssl_client_auth="none")), [WARN]),
    ("SASL between brokers, certificates to controllers", both(everywhere(**PLAIN), properties(ssl_client_auth="required")), []),
    ("SASL between brokers, certificates by reference", both(everywhere(**PLAIN, config_providers="env"), properties(ssl_client_auth="${env:AUTH}")), []),
    ("TLS without certificates everywhere", both(everywhere(**TLS_ONLY | {"ssl_client_auth": "none"}), SSL_CONTROLLERS), []),
    ("ZooKeeper's names not verified", everywhere(**ZOOKEEPER_TLS, zookeeper_ssl_endpoint_identification_algorithm=""), [WARN]),
    ("ZooKeeper's names not verified, with a word for it", everywhere(**ZOOKEEPER_TLS, zookeeper_ssl_endpoint_identification_algorithm="false"), [WARN]),
    ("ZooKeeper's names verified", everywhere(**ZOOKEEPER_TLS, zookeeper_ssl_endpoint_identification_algorithm="HTTPS"), []),
    ("ZooKeeper without TLS", everywhere(zookeeper_ssl_endpoint_identification_algorithm=""), []),
    ("a connection that accepts any name", known(connections=ConnectionFacts(unverified=frozenset({"kafka"}))), [BLOCK]),
    ("another one than the cluster file confirms", both(known(connections=ConnectionFacts(unverified=frozenset({"kafka"}))), spec(unverified=frozenset({"zookeeper"}))), [BLOCK]),
    ("one that the cluster file confirms", both(known(connections=ConnectionFacts(unverified=frozenset({"kafka"}))), spec(unverified=frozenset({"kafka"}))), [WARN]),
    ("a connection with a readable password", known(connections=ConnectionFacts(readable=frozenset({"kafka"}))), [WARN]),
]  # fmt: skip
