"""The cluster file as pydantic sees it: keys, types and ranges. What one key says about another is in `checks`.

A field's description is what a message calls "expected" and what an editor shows; its first example is the fix.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_kmigrate.core.cluster import AuditSpec, HoldPolicy, Policy, Role, SparkJobSpec
from airflow_provider_kmigrate.spec.values import (
    Command,
    Count,
    Duration,
    FilePath,
    Interval,
    Location,
    Port,
    Properties,
    Schedule,
    Share,
    or_default,
)

BROKER_PORT, CONTROLLER_PORT = 9092, 9093


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, str_min_length=1, use_attribute_docstrings=True
    )


class Connection(_Section):
    """Which Airflow connection holds the address and the secrets."""

    conn_id: str = Field(description="the id of an Airflow connection", examples=["prod_zk"], pattern=r"^[\w.\-]+$")


class Hosts(_Section):
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
        description="a command that ends with 0 when the node runs and with 3 when it does not",
        examples=["ssh {host} systemctl is-active kafka"],
    )
    read: Command = Field(
        default=(),
        description="a command that prints the file {path}; without it the file is on Airflow's machine",
        examples=["ssh {host} cat {path}"],
    )
    write: Command = Field(
        default=(),
        description="a command that replaces the file {path} by its standard input",
        examples=["ssh {host} put {path}"],
    )
    format: Command = Field(
        default=(),
        description="a command that formats a controller's directory",
        examples=["ssh {host} kafka-storage.sh format --cluster-id={cluster_id} -r {release} -c {properties}"],
    )
    wipe: Command = Field(
        default=(),
        description="a command that takes a controller's directory {path} out of the way; a rollback needs it",
        examples=["ssh {host} sudo mv {path} {path}.rolled-back"],
    )
    conn_id: str | None = Field(
        default=None,
        description="the id of an Airflow connection with the environment of the commands",
        examples=["prod_hosts"],
        pattern=r"^[\w.\-]+$",
    )
    stop_timeout: Interval = Field(
        default=330.0,
        description="a time above Kafka's own 300 s of controlled shutdown, as seconds or 330s, 10m",
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


class Quorum(_Section):
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


class Caution(_Section):
    """The policy: how careful to be."""

    min_soak: Duration = Field(
        default=_DEFAULT.min_soak, description="the least time in dual-write, as seconds or 24h, 90m", examples=["24h"]
    )
    max_hybrid: Duration = Field(
        default=_DEFAULT.max_hybrid,
        description="the longest time with brokers of both modes, as seconds or 4h, 90m; after it every look raises an alarm (T06)",
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
        description="the time between two looks, above 0, as seconds or 300ms",
        examples=["300ms"],
    )
    max_parallel: Count = Field(
        default=_DEFAULT.max_parallel, description="1: this version restarts one node at a time", examples=[1], le=1
    )
    fast_failover: bool = Field(default=_DEFAULT.fast_failover, description="true or false", examples=[False], strict=True)
    elect_batch: Count = Field(
        default=_DEFAULT.elect_batch, description="partitions per preferred election, a whole number from 1", examples=[10]
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


_JOB = SparkJobSpec("")


class SparkJob(_Section):
    """One streaming query of a Spark job that reads the cluster."""

    name: str = Field(
        description="a name of letters, digits, -, _ and . (it becomes a part of task ids)",
        examples=["orders-to-lake"],
        pattern=r"^[A-Za-z0-9_.\-]+$",
        max_length=100,
    )
    checkpoint: Location | None = Field(
        default=None,
        description="the absolute path or URI of the query's checkpoint",
        examples=["s3a://lake/checkpoints/orders"],
    )
    hold_folder: Location | None = Field(
        default=None,
        description="the absolute path or URI of a folder that job and Airflow both reach",
        examples=["s3a://lake/holds/orders"],
    )
    topics: tuple[str, ...] = Field(default=(), description="a list of the topics that it reads", examples=[["orders"]])
    options: Properties = Field(
        default_factory=dict,
        description="options of its Kafka source, values as text, without secrets",
        examples=[{"failOnDataLoss": "true"}],
    )
    hold: HoldPolicy = Field(
        default=_JOB.hold,
        description="when to hold it: never, risky (before steps that may leave partitions offline) or always",
        examples=["risky"],
    )
    hold_timeout: Interval = Field(
        default=_JOB.hold_timeout,
        description="how long a batch under way may take, above 0, as seconds or 15m",
        examples=["15m"],
    )
    repeats_harmless: bool = Field(
        default=_JOB.repeats_harmless,
        description="true where the sink takes a repeated batch once, else false",
        examples=[False],
        strict=True,
    )
    conn_id: str | None = Field(
        default=None,
        description="the id of an Airflow connection that reaches the checkpoint's file system",
        examples=["lake"],
        pattern=r"^[\w.\-]+$",
    )


_AUDIT = AuditSpec("", "")


class Audit(_Section):
    """How records are audited by Spark: after each phase of a migration, and on a schedule."""

    conn_id: str = Field(description="the id of Airflow's Spark connection", examples=["spark_default"], pattern=r"^[\w.\-]+$")
    result: FilePath = Field(
        description="the absolute path of a folder for results that workers and Spark's driver share",
        examples=["/var/lib/kmigrate/audit"],
    )
    events: tuple[FilePath, ...] = Field(
        default=(),
        description="a list of absolute paths: files or folders of event lines (*.jsonl)",
        examples=[["/var/lib/kmigrate/events"]],
    )
    ledgers: tuple[Location, ...] = Field(
        default=(),
        description="a list of absolute paths or URIs: folders of events as Parquet",
        examples=[["s3a://lake/kmigrate/events"]],
    )
    topics: tuple[str, ...] = Field(
        default=(),
        description="a list of topics whose logs a migration fingerprints and compares",
        examples=[["orders"]],
    )
    share: Share = Field(default=_AUDIT.share, description="which part of each log, above 0, at most 1 (all)", examples=[0.05])
    jars: tuple[Location, ...] = Field(
        default=(),
        description="a list of absolute paths or URIs of the jars with which Spark reads Kafka",
        examples=[["/opt/kmigrate-spark/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"]],
    )
    level: Literal["probe", "consumers", "producers"] = Field(
        default="consumers",
        description="who wrote the events: probe (kmigrate's own), consumers, or producers (and the consumers too)",
        examples=["consumers"],
    )
    tolerated: tuple[str, ...] = Field(
        default=(), description="a list of findings that are shown and do not fail", examples=[["redelivered"]]
    )
    environment: FilePath | None = Field(
        default=None,
        description="the absolute path of Spark's own Python environment on the workers",
        examples=["/opt/kmigrate-spark"],
    )
    schedule: Schedule | None = Field(
        default=None, description="five fields of cron, or @hourly, @daily, @weekly, @monthly", examples=["0 * * * *"]
    )
    extensions: Annotated[int, Field(ge=0, le=1000, strict=True)] = Field(
        default=_AUDIT.extensions,
        description="how often an inconclusive audit is made again, a whole number from 0 to 1000",
        examples=[6],
    )
    extend_by: Interval = Field(
        default=_AUDIT.extend_by,
        description="how long to gather more evidence before that, above 0, as seconds or 10m",
        examples=["10m"],
    )


class ClusterFile(_Section):
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
    policy: Annotated[Caution, or_default({})] = Field(
        default=Caution(), description="a mapping of limits", examples=[{"min_soak": "24h"}]
    )
    groups: Annotated[tuple[Any, ...], or_default(())] = Field(
        default=(), description="nothing: this version does not move consumer groups yet", examples=[[]], max_length=0
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


NODE_MODELS: dict[Role, type[Broker | Controller]] = {Role.BROKER: Broker, Role.CONTROLLER: Controller}
DEFAULT_PORTS = {Role.BROKER: BROKER_PORT, Role.CONTROLLER: CONTROLLER_PORT}


def schema() -> dict[str, Any]:
    """The JSON Schema for editors; `cluster.schema.json` is this, written out."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ClusterFile.model_json_schema()}
