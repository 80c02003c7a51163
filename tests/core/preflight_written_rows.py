"""Values that a migration would lose or change, and what preflight finds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, NodeFiles, Taken
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts
from tests.core.preflight_around import tree
from tests.core.preflight_views import FORMATTED, Case, Change, both, broker_1, config

DEFAULTS = {"num.io.threads": "8", "log.retention.hours": "168", "min.insync.replicas": "1", "log.dir": "/tmp/kafka-logs"}


def edited(running: Mapping[str, str | None] | None = None, effective: Mapping[str, str] | None = None, **file: str) -> Change:
    """Broker 1's file says this, after it was started with `running`; both beside what every broker has."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        view, _ = broker_1(files=NodeFiles(config(1, **file), FORMATTED))(view, facts)
        taken = {**facts.environment.taken, 1: Taken({**config(1), "node.id": "1", **(running or {})}, DEFAULTS)}
        configs = {**facts.configs, 1: {**DEFAULTS, **config(1), **(effective or {})}}
        return view, replace(facts, environment=replace(facts.environment, taken=taken), configs=configs)

    return change


def dynamic_1(key: str) -> Change:
    return tree(broker_settings={"1": (key,)})


def kept(name: str | None) -> Change:
    return broker_1(files=NodeFiles(config(1), FORMATTED, kept_by=name))


ROWS: list[tuple[str, Change, list[str]]] = [
    ("as it was", edited(), []),
    ("data directories moved", edited({"log.dirs": "/a"}, log_dirs="/a,/b"), ["B15"]),
    ("one directory under its other name", edited({"log.dir": "/a"}, log_dirs="/a"), []),
    ("listeners edited", edited({"listeners": "PLAINTEXT://:9092"}, listeners="SSL://:9093"), ["B15"]),
    ("key of a listener added", edited(listener_name_internal_ssl_client_auth="required"), ["B15"]),
    ("fewer copies of new topics", edited({"default.replication.factor": "3"}, default_replication_factor="1"), ["B15"]),
    ("authorizer taken out", edited({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}), ["B15"]),
    ("ensemble moved", edited({"zookeeper.connect": "zk:2181/kafka"}, zookeeper_connect="zk9:2181/kafka"), ["B15"]),
    ("threads edited", edited({"num.io.threads": "8"}, num_io_threads="16"), ["B15"]),
    ("both kinds", edited(num_io_threads="16", advertised_listeners="PLAINTEXT://x:1"), ["B15", "B15"]),
    ("an own key added", edited(my_reporter_port="9"), ["B15", "W24"]),
    ("an own key as before: brokers do not report what they do not know", edited({"my.port": None}, my_port="9"), ["W24"]),
    ("default written out", edited(num_io_threads="8"), []),
    ("default taken out", edited({"num.io.threads": "8"}), []),
    ("set dynamically and in the file", edited({"num.io.threads": "8"}, {"num.io.threads": "16"}, num_io_threads="16"), []),
    ("blanks and case", edited({"metric.reporters": "a, b ", "delete.topic.enable": "True", "num.io.threads": "08"}, metric_reporters="a,b", delete_topic_enable="true", num_io_threads="8"), []),
    ("four times the threads, dynamically", both(edited({}, {"num.io.threads": "32"}), dynamic_1("num.io.threads")), ["B20", "W13"]),
    ("a quarter of the threads, dynamically", both(edited({}, {"num.io.threads": "2"}), dynamic_1("num.io.threads")), ["B20", "W13"]),
    ("twice the threads, dynamically", both(edited({}, {"num.io.threads": "16"}), dynamic_1("num.io.threads")), ["W13"]),
    ("half of the threads, dynamically", both(edited({}, {"num.io.threads": "4"}), dynamic_1("num.io.threads")), ["W13"]),
    ("many threads, dynamically and in the file", both(edited({"num.io.threads": "32"}, {"num.io.threads": "32"}, num_io_threads="32"), dynamic_1("num.io.threads")), ["W13"]),
    ("many threads written into the file after they were set", both(edited({}, {"num.io.threads": "32"}, num_io_threads="32"), dynamic_1("num.io.threads")), ["W13"]),
    ("cleaners", both(edited({}, {"log.cleaner.threads": "3"}), dynamic_1("log.cleaner.threads")), ["B20", "W13"]),
    ("fetchers", both(edited({}, {"num.replica.fetchers": "4"}), dynamic_1("num.replica.fetchers")), ["B20", "W13"]),
    ("recovery threads", both(edited({}, {"num.recovery.threads.per.data.dir": "8"}), dynamic_1("num.recovery.threads.per.data.dir")), ["B20", "W13"]),
    ("background threads", both(edited({}, {"background.threads": "40"}), dynamic_1("background.threads")), ["B20", "W13"]),
    ("network threads of one listener", both(edited({}, {"listener.name.internal.num.network.threads": "9"}), dynamic_1("listener.name.internal.num.network.threads")), ["B20", "W13"]),
    ("another number, dynamically", both(edited({}, {"message.max.bytes": "99999999"}), dynamic_1("message.max.bytes")), ["W13"]),
    ("retention in another unit", edited({"log.retention.ms": "172800000"}, log_retention_hours="48"), []),
    ("retention shortened in another unit", edited({"log.retention.hours": "168"}, log_retention_minutes="60"), ["B15"]),
    ("the default retention in another unit", edited(log_retention_ms="604800000"), []),
    ("the stronger name wins", edited({"log.retention.ms": "9", "log.retention.hours": "1"}, log_retention_ms="9"), []),
    ("a reference", edited({"log.dirs": "/a"}, log_dirs="${file:/etc/x:dirs}"), []),
    ("a reference where nothing was", edited(log_dirs="${file:/etc/x:dirs}"), ["B15"]),
    ("a secret", edited({"ssl.key.password": None}, ssl_key_password="hunter2"), []),
    ("a secret added", edited(ssl_key_password="hunter2"), ["B15"]),
    ("a secret taken out", edited({"ssl.key.password": None}), ["B15"]),
    ("hostnames not checked", edited({"ssl.endpoint.identification.algorithm": ""}, ssl_endpoint_identification_algorithm=""), []),
    ("the command line overrides the file", edited({"log.dirs": "/pod-1"}), ["B15"]),
    ("protocol version taken out", edited({}, inter_broker_protocol_version=""), ["B15"]),
    ("login for the controllers' listener", edited(sasl_mechanism_controller_protocol="PLAIN", listener_name_controller_plain_sasl_jaas_config="x"), []),
    ("other mechanism for controllers", edited({"sasl.mechanism.controller.protocol": "GSSAPI"}, sasl_mechanism_controller_protocol="PLAIN"), []),
    ("login of a listener that only begins so", edited(listener_name_controllers_plain_sasl_jaas_config="x"), ["B15"]),
    ("voters, which only controllers' peers read", edited(controller_quorum_voters="3000@c:9093"), []),
    ("secret for dynamic passwords", edited(password_encoder_secret="a", password_encoder_old_secret="b"), []),
    ("secret for dynamic passwords taken out", edited({"password.encoder.secret": None}), ["B15"]),
    ("other cipher for dynamic passwords", edited(password_encoder_cipher_algorithm="DES"), ["B15"]),
    ("its id where it was generated", edited({"broker.id": "-1", "node.id": "-1"}, {"broker.id": "-1"}), []),
    ("ids that are no longer generated", edited(broker_id_generation_enable="false"), []),
    ("the id of another", edited(broker_id="7"), ["M01", "B15"]),
    ("a file of another stage", edited(zookeeper_metadata_migration_enable="true", log_dirs="/b"), ["C04"] * 3),
    ("written by Ansible", kept("Ansible"), ["W9"]),
    ("written by hand", kept(None), []),
]  # fmt: skip
