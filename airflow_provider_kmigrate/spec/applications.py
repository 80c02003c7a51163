"""The cluster file's sections about those who use the cluster: consumer groups, Spark jobs, and the audit of their records.

As in `model`, a field's description is what a message calls "expected", and its first example is the fix.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StrictBool

from airflow_provider_kmigrate.core.cluster import AuditSpec, CanarySpec, GroupSpec, HoldPolicy, SparkJobSpec
from airflow_provider_kmigrate.spec.section import Section
from airflow_provider_kmigrate.spec.values import (
    Command,
    Count,
    Duration,
    FilePath,
    Interval,
    Location,
    Margin,
    Moment,
    Properties,
    Schedule,
    Share,
    Window,
)

_GROUP = GroupSpec("", ())


class Instance(Section):
    """One process of an application that consumes; `switch` and `webhook` may stand at the group for all of them."""

    name: str = Field(
        description="what its members are called by: consumer.id, client.id or, without those, its host's name",
        examples=["billing-0"],
        pattern=r"^[A-Za-z0-9_.\-]+$",
        max_length=100,
    )
    host: str = Field(
        default="",
        description="the host that fills {host} in its command",
        examples=["app0.example.org"],
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$",
    )
    switch: Command = Field(
        default=(),
        description="a command that restarts the instance as {kind} (old, migrating or plain) and ends with 0 when it is restarted",
        examples=["ssh {host} sudo billing-as {kind}"],
    )
    webhook: str | None = Field(
        default=None,
        description="the id of an Airflow HTTP connection that is told to restart the instance",
        examples=["deployer"],
        pattern=r"^[\w.\-]+$",
    )


class Group(Section):
    """One consumer group that moves off ZooKeeper, instance by instance."""

    name: str = Field(
        description="the group's id (it becomes a part of task ids)",
        examples=["billing"],
        pattern=r"^[A-Za-z0-9_.\-]+$",
        max_length=100,
    )
    instances: tuple[Instance, ...] = Field(
        description="a list of every process that consumes in the group, the canary first",
        examples=[[{"name": "billing-0", "host": "app0"}]],
        min_length=1,
    )
    switch: Command = Field(
        default=(),
        description="a command for every instance that has none of its own",
        examples=["ssh {host} sudo billing-as {kind}"],
    )
    webhook: str | None = Field(
        default=None,
        description="the id of an Airflow HTTP connection for every instance that has none of its own",
        examples=["deployer"],
        pattern=r"^[\w.\-]+$",
    )
    wave: Count = Field(default=_GROUP.wave, description="a whole number from 1; later waves wait for earlier ones", examples=[1])
    window: Window | None = Field(
        default=None,
        description="a daily time in UTC in which the group may be begun, such as 22:00-04:00",
        examples=["22:00-04:00"],
    )
    bake: Duration = Field(
        default=_GROUP.bake, description="how long a canary instance is watched, as seconds or 10m", examples=["10m"]
    )
    commit_within: Interval = Field(
        default=_GROUP.commit_within,
        description="how long a partition with lag may go without a commit, above 0, as seconds or 150s",
        examples=["150s"],
    )
    switch_timeout: Interval = Field(
        default=_GROUP.switch_timeout,
        description="how long a restarted instance may take until it consumes, above 0, as seconds or 5m",
        examples=["5m"],
    )
    conn_id: str | None = Field(
        default=None,
        description="the id of an Airflow connection with the environment of the commands",
        examples=["prod_apps"],
        pattern=r"^[\w.\-]+$",
    )


_JOB = SparkJobSpec("")


class SparkJob(Section):
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


_CANARY = CanarySpec()


class Canary(Section):
    """How a group's canary instance is compared with the others."""

    interval: Interval = Field(
        default=_CANARY.interval, description="what is measured in one piece, above 0, as seconds or 5s", examples=["5s"]
    )
    window: Annotated[int, Field(ge=40, le=10_000, strict=True)] = Field(
        default=_CANARY.window, description="how many intervals are judged, a whole number from 40 to 10000", examples=[60]
    )
    margin: Margin = Field(
        default=_CANARY.margin, description="how many times as late records may come, above 1, at most 100", examples=[1.5]
    )
    settle: Duration = Field(
        default=_CANARY.settle,
        description="how long after the switch nothing is measured, as seconds or 10s",
        examples=["10s"],
    )


_AUDIT = AuditSpec("", "")
Finding: TypeAlias = Literal["lost", "diverged", "stored_twice", "overrun", "redelivered", "reordered", "double_owned"]


class Audit(Section):
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
    events_topic: str | None = Field(
        default=None,
        description="the topic to which clients write their events, letters, digits, -, _ and .; read with `jars`",
        examples=["kmigrate-events"],
        pattern=r"^[A-Za-z0-9_.\-]+$",
        max_length=249,
    )
    topics: tuple[str, ...] | None = Field(
        default=None,
        description="a list of topics whose logs a migration fingerprints and compares; left out: of all topics the newest records; []: none",
        examples=[["orders"]],
    )
    ignored: tuple[str, ...] = Field(
        default=(),
        description="a list of topics that may come and go, so that nobody compares them where `topics` is left out",
        examples=[["scratch"]],
    )
    rewinding: tuple[str, ...] = Field(
        default=(),
        description="a list of consumer groups that go back to earlier offsets on purpose, such as loaders that read all at each start",
        examples=[["table-loader"]],
    )
    share: Share | None = Field(
        default=None,
        description="which part of each log, above 0, at most 1 (all, the default for named topics); the newest records always",
        examples=[0.05],
    )
    jars: tuple[Location, ...] = Field(
        default=(),
        description="a list of absolute paths or URIs of the jars with which Spark reads Kafka",
        examples=[["/opt/kmigrate-spark/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"]],
    )
    level: Literal["probe", "consumers", "producers"] = Field(
        default="producers",
        description="what the events prove: probe (kmigrate's own), producers (they and the consumers wrote them), or only consumers' claims of those",
        examples=["producers"],
    )
    tolerated: tuple[Finding, ...] = Field(
        default=(),
        description="a list of findings that are shown and do not fail: lost, diverged, stored_twice, overrun, redelivered, reordered or double_owned",
        examples=[["redelivered"]],
    )
    environment: FilePath | None = Field(
        default=None,
        description="the absolute path of Spark's own Python environment on the workers",
        examples=["/opt/kmigrate-spark"],
    )
    schedule: Schedule | None = Field(
        default=None, description="five fields of cron, or @hourly, @daily, @weekly, @monthly", examples=["0 * * * *"]
    )
    judged_from: Moment | None = Field(
        default=None,
        description="a time of UTC such as 2026-01-31T12:00Z: scheduled audits show what was over before it and fail by what came later",
        examples=["2026-01-31T12:00Z"],
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
    probe: StrictBool = Field(
        default=_AUDIT.probe,
        description="true or false: whether a migration sends and receives records of its own through every broker (topic kmigrate-probe)",
        examples=[True],
    )
    canary: Canary | None = Field(
        default=None,
        description="how a group's canary is compared with its other instances; without it they are not compared",
        examples=[{"margin": 1.5}],
    )
    behind: Interval = Field(
        default=_AUDIT.behind,
        description="how far behind clients may be that run on, above 0, as seconds or 1m",
        examples=["60s"],
    )
