"""The cluster file as pydantic sees it: keys, types and ranges. What one key says about another is in `checks`.

A field's description is what a message calls "expected" and what an editor shows; its first example is the fix.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_provider_kmigrate.core.cluster import Policy, Role
from airflow_provider_kmigrate.spec.applications import Audit, Group, SparkJob
from airflow_provider_kmigrate.spec.section import Section
from airflow_provider_kmigrate.spec.values import (
    Command,
    Count,
    Duration,
    FilePath,
    Interval,
    Port,
    Properties,
    Schedule,
    or_default,
)

BROKER_PORT, CONTROLLER_PORT = 9092, 9093


class Connection(Section):
    """Which Airflow connection holds the address and the secrets."""

    conn_id: str = Field(description="the id of an Airflow connection", examples=["prod_zk"], pattern=r"^[\w.\-]+$")


class Hosts(Section):
    """How to reach the nodes' machines; every key may stand in a node's entry too, where it wins."""

    driver: Literal["local", "command"] | None = Field(
        default=None,
        description="a driver: command (runs the commands you give) or local (processes of the local cluster)",
        examples=["command"],
    )
    properties: FilePath | None = Field(
        default=None, description="the absolute path of the node's server.properties", examples=["/etc/kafka/server.properties"]
    )
    state: FilePath | None = Field(
        default=None,
        description="the absolute path of the local driver's folder for the node",
        examples=["/var/lib/kmigrate/broker-0"],
    )
    start: Command = Field(
        default=(), description="a command that starts the node", examples=["ssh {host} sudo systemctl start kafka"]
    )
    stop: Command = Field(
        default=(), description="a command that stops the node", examples=["ssh {host} sudo systemctl stop kafka"]
    )
    status: Command = Field(
        default=(),
        description="a command that ends with 0 when the node runs, and with 3 and a line `inactive` or `failed` when it is stopped",
        examples=["ssh {host} systemctl is-active kafka"],
    )
    read: Command = Field(
        default=(),
        description="a command that prints the file {path}; without it the file is on Airflow's machine",
        examples=["ssh {host} sudo /usr/local/sbin/kmigrate-node read {path}"],
    )
    write: Command = Field(
        default=(),
        description="a command that replaces the file {path} by its standard input",
        examples=["ssh {host} sudo /usr/local/sbin/kmigrate-node write {path}"],
    )
    format: Command = Field(
        default=(),
        description="a command that formats a controller's directory, as Kafka's user",
        examples=["ssh {host} sudo /usr/local/sbin/kmigrate-node format {properties} {cluster_id} {release}"],
    )
    wipe: Command = Field(
        default=(),
        description="a command that takes a controller's directory {path} out of the way, each time to another name; a rollback needs it",
        examples=["ssh {host} sudo /usr/local/sbin/kmigrate-node wipe {path}"],
    )
    conn_id: str | None = Field(
        default=None,
        description="the id of an Airflow connection with the environment of the commands",
        examples=["prod_hosts"],
        pattern=r"^[\w.\-]+$",
    )
    stop_timeout: Interval = Field(
        default=330.0,
        description="a time above Kafka's own 300 s of controlled shutdown, as seconds or 330s, 10m; a controller gets 60 s at most",
        examples=["330s"],
    )
    kill_after: Interval | None = Field(
        default=None,
        description="when the node's service manager kills it in a stop (systemd: TimeoutStopSec), as seconds or 330s, 10m",
        examples=["10m"],
    )


class Node(Hosts):
    """What brokers and controllers share."""

    id: int = Field(
        description="the node's broker.id or node.id, a whole number from 0", examples=[0], ge=0, le=2**31 - 1, strict=True
    )
    host: str = Field(
        description="a host name or IPv4 address, without port",
        examples=["kafka0.example.org"],
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$",
    )
    rack: str | None = Field(default=None, description="the node's broker.rack, as text", examples=["a"])


class Broker(Node):
    """One broker."""

    port: Port = Field(
        default=BROKER_PORT, description="the port of the listener that clients use, from 1 to 65535", examples=[BROKER_PORT]
    )
    log_dir: FilePath | None = Field(default=None, description="an absolute path", examples=["/var/lib/kafka"])


class Controller(Node):
    """One KRaft controller, on a node of its own."""

    port: Port = Field(
        default=CONTROLLER_PORT, description="the port of the controller listener, from 1 to 65535", examples=[CONTROLLER_PORT]
    )
    log_dir: FilePath = Field(
        description="the absolute path of the controller's own metadata directory, empty before the migration",
        examples=["/var/lib/kraft"],
    )


class Quorum(Section):
    """The controllers' listener; the default is PLAINTEXT on a listener called CONTROLLER."""

    conn_id: str | None = Field(
        default=None,
        description="the id of an Airflow connection with the controller listener's TLS and SASL",
        examples=["prod_controllers"],
        pattern=r"^[\w.\-]+$",
    )
    listener: str = Field(
        default="CONTROLLER", description="the controllers' listener name", examples=["CONTROLLER"], pattern=r"^[A-Za-z0-9_.\-]+$"
    )
    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT",
        description="the controller listener's protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
        examples=["SASL_SSL"],
    )
    properties: Properties = Field(
        default_factory=dict,
        description="keys for every controller's server.properties, values as text, secrets only by reference",
        examples=[{"num.io.threads": "8"}],
    )


_DEFAULT = Policy()


class PolicySection(Section):
    """The policy: how careful to be."""

    min_soak: Duration = Field(
        default=_DEFAULT.min_soak, description="the least time in dual-write, as seconds or 24h, 90m", examples=["24h"]
    )
    max_hybrid: Duration = Field(
        default=_DEFAULT.max_hybrid,
        description="the longest time from the start of the controllers until the last broker runs in KRaft mode, as seconds or 4h, 90m; after it every look raises an alarm (T06)",
        examples=["4h"],
    )
    canary_bake: Duration = Field(
        default=_DEFAULT.canary_bake,
        description="how long to watch the first broker of each roll, which goes back if it is worse, as seconds or 10m; 0 for not at all",
        examples=["10m"],
    )
    stable_samples: Count = Field(
        default=_DEFAULT.stable_samples, description="how many healthy looks in a row count, a whole number from 1", examples=[3]
    )
    sample_interval: Interval = Field(
        default=_DEFAULT.sample_interval,
        description="the time between two looks, above 0, as seconds or 300ms; half of it between those that confirm each other",
        examples=["300ms"],
    )
    max_parallel: Count = Field(
        default=_DEFAULT.max_parallel, description="1: this version restarts one node at a time", examples=[1], le=1
    )
    fast_failover: bool = Field(
        default=_DEFAULT.fast_failover,
        description="true or false: shorter waits of fetches and heartbeats in the files that the rolls write, and elections in batches",
        examples=[False],
        strict=True,
    )
    elect_batch: Count = Field(
        default=_DEFAULT.elect_batch,
        description="partitions per preferred election under fast_failover, a whole number from 1",
        examples=[10],
    )
    start_timeout: Interval = Field(
        default=_DEFAULT.start_timeout,
        description="how long a started node may take into every ISR, above 0, as seconds or 10m",
        examples=["10m"],
    )
    copy_timeout: Interval = Field(
        default=_DEFAULT.copy_timeout,
        description="how long the metadata copy may take, above 0, as seconds or 10m",
        examples=["10m"],
    )


class ClusterFile(Section):
    """One Kafka cluster that kmigrate may move from ZooKeeper to KRaft."""

    name: str = Field(
        description="a name of letters, digits, - and _ (it becomes a part of DAG ids)",
        examples=["prod"],
        pattern=r"^[A-Za-z0-9_-]+$",
        max_length=100,
    )
    cluster_id: str = Field(
        description="the cluster's id, 22 letters, digits, - and _, as the znode /cluster/id has it",
        examples=["q1Sh-9_ISia_zwGINzRvyQ"],
        pattern=r"^[A-Za-z0-9_-]{22}$",
    )
    zookeeper: Connection = Field(description="a mapping with conn_id", examples=[{"conn_id": "prod_zk"}])
    kafka: Connection = Field(description="a mapping with conn_id", examples=[{"conn_id": "prod_kafka"}])
    kafka_release: str | None = Field(
        default=None,
        description="the release of Kafka that every broker runs; brokers tell its first two numbers only",
        examples=["3.9.2"],
        pattern=r"^\d+\.\d+\.\d+$",
    )
    hosts: Annotated[Hosts, or_default({})] = Field(
        default=Hosts(), description="a mapping of defaults for all nodes", examples=[{"driver": "command"}]
    )
    brokers: tuple[Broker, ...] = Field(
        description="a list of every broker of the cluster", examples=[[{"id": 0, "host": "kafka0"}]], min_length=1
    )
    controllers: tuple[Controller, ...] = Field(
        description="a list of the new KRaft controllers, best three",
        examples=[[{"id": 3000, "host": "ctl0", "log_dir": "/var/lib/kraft"}]],
        min_length=1,
    )
    quorum: Annotated[Quorum, or_default({})] = Field(
        default=Quorum(), description="a mapping about the controllers' listener", examples=[{"listener": "CONTROLLER"}]
    )
    policy: Annotated[PolicySection, or_default({})] = Field(
        default=PolicySection(), description="a mapping of limits", examples=[{"min_soak": "24h"}]
    )
    groups: Annotated[tuple[Group, ...], or_default(())] = Field(
        default=(),
        description="a list of consumer groups that move off ZooKeeper coordination",
        examples=[[{"name": "billing", "switch": "ssh {host} sudo billing-as {kind}", "instances": [{"name": "billing-0"}]}]],
    )
    groups_schedule: Schedule | None = Field(
        default=None,
        description="when groups are moved on: five fields of cron, or @hourly, @daily, @weekly, @monthly",
        examples=["0 22 * * *"],
    )
    spark_jobs: Annotated[tuple[SparkJob, ...], or_default(())] = Field(
        default=(),
        description="a list of Spark streaming queries that read the cluster",
        examples=[[{"name": "orders-to-lake", "checkpoint": "/lake/checkpoints/orders"}]],
    )
    audit: Audit | None = Field(
        default=None,
        description="a mapping about audits by Spark; without it there are none",
        examples=[{"conn_id": "spark_default", "result": "/var/lib/kmigrate/audit", "events": ["/var/lib/kmigrate/events"]}],
    )


DEFAULT_PORTS = {Role.BROKER: BROKER_PORT, Role.CONTROLLER: CONTROLLER_PORT}


def schema() -> dict[str, Any]:
    """The JSON Schema for editors; `cluster.schema.json` is this, written out."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ClusterFile.model_json_schema()}
