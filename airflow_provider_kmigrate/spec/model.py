"""The cluster file as pydantic sees it: sections, keys, types and ranges, and the kinds of values in them.

`checks` holds what one key says about another. A field's description is what a message calls "expected" and what an editor shows;
its first example is the fix, so that of a switch is its safe side. `reference` makes the page docs/cluster-file.md of it: every key, with its default.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationInfo, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from airflow_provider_kmigrate.core.cluster_state.spec import (
    ApproverSpec,
    AuditSpec,
    CanarySpec,
    GroupProgressSpec,
    GroupSpec,
    GroupWay,
    HoldPolicy,
    NodeRole,
    Policy,
    SparkJobSpec,
    SparkSpec,
    StopPoint,
)


class Section(BaseModel):
    """Unknown keys are refused; numbers are taken where text is expected, empty text is not."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, str_min_length=1)


def key(expected: str, example: Any, **settings: Any) -> Any:
    """A key of a section: what a message calls expected, and an example, which is the fix. Without a default the file must have it."""
    return Field(description=expected, examples=[example], **settings)


COMMAND_ERROR: Literal["command"] = "command"  # its context has `found`, and `expected` if the description does not say it
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = r"^(?:[0-9]+(?:\.[0-9]+)?|(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+)$"
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?Z$"
_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly")
_CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))  # minute, hour, day, month, day of the week
PLACEHOLDER = re.compile(r"(?<![${])\{(\w+)\}(?!\})")  # neither ${SHELL} nor {{template}}
_PLACEHOLDERS = {
    "connect": ("id", "host", "properties"),
    "switch": ("group", "instance", "host", "kind"),
    "hold_command": ("job",),
    "release_command": ("job",),
}


def parse_seconds(value: object) -> object:
    """Seconds of `24h`, `1h30m`, `500ms`, `5` or `0.3`; anything else is passed to pydantic, which refuses it."""
    if isinstance(value, str) and re.fullmatch(_DURATION, value):
        parts = re.findall(r"([0-9.]+)(ms|s|m|h|d)?", value)
        return sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    return value


def _parse_number(value: object) -> object:
    """Numbers with a point, which the file's reader leaves as text; `true` is no 1."""
    if isinstance(value, bool):
        return str(value)
    return float(value) if isinstance(value, str) and re.fullmatch(r"[0-9]*\.?[0-9]+", value) else value


def _split_command(value: object, info: ValidationInfo) -> object:
    """A command as an argument list; a string is split as a POSIX shell would, and no shell ever runs it."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"a command with {str(error).lower()}"}) from error
    if isinstance(value, list):
        known_placeholders = _PLACEHOLDERS[info.field_name or ""]
        for name in PLACEHOLDER.findall(" ".join(str(word) for word in value)):
            if name not in known_placeholders:
                listed = ", ".join(f"{{{placeholder}}}" for placeholder in known_placeholders)
                raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"{{{name}}}", "expected": f"only {listed}"})
    return value


def _property_as_text(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _check_schedule(value: object) -> object:
    """A cron expression that Airflow accepts; a wrong one would remove all DAGs of the file."""
    fields = value.split() if isinstance(value, str) else []
    cron = len(fields) == len(_CRON) and all(map(_is_valid_cron_field, fields, _CRON))
    if value is None or value in _PRESETS or cron:
        return value
    raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"{str(value)[:40]!r}, which is no schedule"})


def _check_moment(value: object) -> object:
    """A day and a time of UTC."""
    if isinstance(value, str) and re.fullmatch(_MOMENT, value):
        with suppress(ValueError):
            datetime.fromisoformat(value)
            return value
    raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"{str(value)[:40]!r}"})


def _as_list(value: object) -> object:
    """One value of a list that is written without the list."""
    return [value] if isinstance(value, str) else value


def _is_valid_cron_field(field: str, limits: tuple[int, int]) -> bool:
    """One field of cron: `*`, numbers, ranges, lists and steps; no names."""
    for part in field.split(","):
        match = re.fullmatch(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([1-9][0-9]?))?", part)
        if match is None:
            return False
        first, last, step = match.groups()
        numbers = [int(number) for number in (first, last) if number is not None]
        if numbers != sorted(numbers) or any(not limits[0] <= number <= limits[1] for number in numbers):
            return False
        if step is not None and first is not None and last is None:
            return False
    return True


def or_default(empty: object) -> BeforeValidator:
    """A section whose lines are all commented out reads as null; it means the section's defaults."""
    return BeforeValidator(lambda value: empty if value is None else value)


_DURATION_SCHEMA = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION}]}
_COMMAND_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}

Duration = Annotated[
    float, Field(ge=0, allow_inf_nan=False, strict=True), BeforeValidator(parse_seconds), WithJsonSchema(_DURATION_SCHEMA)
]
Interval = Annotated[
    float, Field(gt=0, allow_inf_nan=False, strict=True), BeforeValidator(parse_seconds), WithJsonSchema(_DURATION_SCHEMA)
]
Count = Annotated[int, Field(ge=1, strict=True)]
Command = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_split_command), WithJsonSchema(_COMMAND_SCHEMA)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), BeforeValidator(_parse_number)]
Margin = Annotated[float, Field(gt=1, le=100, allow_inf_nan=False), BeforeValidator(_parse_number)]
Moment = Annotated[str, BeforeValidator(_check_moment), WithJsonSchema({"type": "string", "pattern": _MOMENT})]
Schedule = Annotated[str, BeforeValidator(_check_schedule)]
Location = Annotated[str, Field(pattern=r"^(?:/|[a-z][a-z0-9+.-]*://)[^\x00-\x1f]*$")]
Window = Annotated[str, Field(pattern=r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]-(?:[01][0-9]|2[0-3]):[0-5][0-9]$")]
FilePath = Annotated[str, Field(pattern=r"^/(?:[^\x00-\x1f]*[^\x00-\x20])?$")]
PropertiesPath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*[^\x00-\x20/]$")]  # of a file, so without a slash at the end
ConnectionId = Annotated[str, Field(pattern=r"^[\w.\-]+$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]+$", max_length=100)]  # becomes a part of task ids
UnitName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9:_.\-]+(@[A-Za-z0-9:_.@\-]+)?\.service$", max_length=200)
]  # no template itself
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
Port = Annotated[int, Field(ge=1, le=65_535, strict=True)]
Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]*[mg]$")]
Properties = Annotated[dict[str, Annotated[str, BeforeValidator(_property_as_text), Field(min_length=0)]], or_default({})]


_GROUP = GroupSpec("", ())


class Units(Section):
    """The systemd unit that runs an instance as each kind; kmigrate's agent on its machine stops one and starts another."""

    zookeeper: UnitName = key("the unit of the old version", "billing-old.service")
    migrating: UnitName | None = key(
        "the unit of the migrating consumer, with `way: migrating`", "billing-both.service", default=None
    )
    kafka: UnitName = key("the unit of the new version", "billing-new.service")


class Instance(Section):
    """One process of an application that consumes; `switch`, `webhook` and `units` may be set for the whole group."""

    name: Name = key("the name of its members: consumer.id, client.id or, without those, its host's name", "billing-0")
    host: HostName = key("the host that replaces {host} in its command, and that has its units", "app0.example.org", default="")
    switch: Command = key(
        "a command that restarts the instance as {kind} (zookeeper, migrating or kafka; in a cutover zookeeper, stopped or kafka) and "
        "exits with 0 once it has restarted or stopped",
        "ssh {host} sudo billing-as {kind}",
        default=(),
    )
    webhook: ConnectionId | None = key(
        "the id of an Airflow HTTP connection to the service that restarts the instance", "deployer", default=None
    )
    units: Units | None = key(
        "a mapping of each kind to its systemd unit on the instance's `host`, whose kmigrate-node stops and starts it",
        {"zookeeper": "billing-old.service", "kafka": "billing-new.service"},
        default=None,
    )


class GroupSection(Section):
    """One consumer group that moves off ZooKeeper, instance by instance or by a cutover."""

    name: Name = key(
        "the group's id, of letters, digits, -, _ and . as Kafka's ZooKeeper consumers allow (it becomes a part of task ids)",
        "billing",
    )
    way: GroupWay | None = key(
        "migrating: instance by instance, as migrating consumers; cutover: all stop, offsets are copied, the new version starts; left out: "
        "cutover with `by_hand` or `side_by_side`, whose instances can be no migrating consumers, else migrating",
        "cutover",
        default=None,
    )
    instances: tuple[Instance, ...] = key(
        "a list of every process that consumes in the group, the canary first",
        [{"name": "billing-0", "host": "app0"}],
        min_length=1,
    )
    switch: Command = key(
        "a command for every instance that has none of its own", "ssh {host} sudo billing-as {kind}", default=()
    )
    webhook: ConnectionId | None = key(
        "the id of an Airflow HTTP connection for every instance that has none of its own", "deployer", default=None
    )
    units: Units | None = key(
        "the same mapping for every instance that has none of its own",
        {"zookeeper": "billing-old.service", "kafka": "billing-new.service"},
        default=None,
    )
    webhook_tls: StrictBool = key(
        "true, or false to confirm that the webhooks of this group are called over http, without TLS",
        True,
        default=_GROUP.webhook_tls,
    )
    wave: Count = key("a whole number from 1; later waves wait for earlier ones", 1, default=_GROUP.wave)
    window: Window | None = key(
        "a daily time in UTC in which the group's move may start, such as 22:00-04:00", "22:00-04:00", default=None
    )
    bake: Duration = key("how long a canary instance is watched, as seconds or 10m", "10m", default=_GROUP.bake)
    commit_within: Interval = key(
        "how long a partition with lag may go without a commit, above 0, as seconds or 150s", "150s", default=_GROUP.commit_within
    )
    switch_timeout: Interval = key(
        "how long a restarted instance may take until it consumes, above 0, as seconds or 5m", "5m", default=_GROUP.switch_timeout
    )
    quiet: Interval = key(
        "how long no client may own, commit or be registered in a cutover before offsets are copied, above 0, as seconds or 5s",
        "5s",
        default=_GROUP.quiet,
    )
    by_hand: StrictBool = key(
        "true if people stop and start the instances of a cutover: they confirm it in Airflow, and the task's log says when; then no `switch`",
        False,
        default=_GROUP.by_hand,
    )
    side_by_side: StrictBool = key(
        "true if old and new version may process the same records: a cutover's first instance then runs the new version beside the others for `bake`",
        False,
        default=_GROUP.side_by_side,
    )
    conn_id: ConnectionId | None = key(
        "the id of an Airflow connection with the environment of the commands", "prod_apps", default=None
    )


_GROUP_PROGRESS = GroupProgressSpec()


class GroupProgressSection(Section):
    """After each broker's restart, every consumer group that made progress before it must make progress again; else the next
    restart waits. This holds for all groups, also without this section.
    """

    exclude: tuple[str, ...] = key(
        "a list of the ids of groups that are not waited for", ["nightly-loader"], default=_GROUP_PROGRESS.exclude
    )
    max_lag: Annotated[dict[str, Count], or_default({})] = key(
        "a mapping of a group's id to a whole number from 1: how many records each of its partitions may be behind without having to move",
        {"billing": 1000},
        default_factory=dict,
    )
    commit_within: Interval = key(
        "how long a partition with lag may go without a commit before its group is named, above 0, as seconds or 150s",
        "150s",
        default=_GROUP_PROGRESS.commit_within,
    )


_JOB = SparkJobSpec("")


class SparkJob(Section):
    """One streaming query of a Spark job that reads the cluster."""

    name: Name = key("a name of letters, digits, -, _ and . (it becomes a part of task ids)", "orders-to-lake")
    checkpoint: Location | None = key(
        "the absolute path or URI of the query's checkpoint", "s3a://lake/checkpoints/orders", default=None
    )
    hold_folder: Location | None = key(
        "the absolute path or URI of a folder that job and Airflow both reach", "s3a://lake/holds/orders", default=None
    )
    topics: tuple[str, ...] = key("a list of the topics that it reads", ["orders"], default=())
    options: Properties = key(
        "options of its Kafka source, values as text, without secrets", {"failOnDataLoss": "true"}, default_factory=dict
    )
    hold: HoldPolicy = key(
        "when to hold it: never, risky (before steps that may leave partitions offline) or always", "risky", default=_JOB.hold
    )
    hold_timeout: Interval = key(
        "how long to wait for a running batch, above 0, as seconds or 15m", "15m", default=_JOB.hold_timeout
    )
    idempotent_sink: bool = key(
        "true if the sink ignores a repeated batch, else false", False, default=_JOB.idempotent_sink, strict=True
    )
    conn_id: ConnectionId | None = key(
        "the id of an Airflow connection that reaches the checkpoint's file system", "lake", default=None
    )
    hold_command: Command = key(
        "a command that stops a job of another kind from reading, and exits with 0 once it has stopped; it may run again",
        "jobctl pause {job}",
        default=(),
    )
    release_command: Command = key(
        "the command that lets it read again, from where it stopped; it may run again", "jobctl resume {job}", default=()
    )
    command_conn_id: ConnectionId | None = key(
        "the id of an Airflow connection with the environment of both commands", "prod_jobs", default=None
    )
    group: str = key(
        "the consumer group whose committed offsets show where such a job stands; default: its checkpoint does",
        "connect-orders",
        default="",
    )
    quiet: Interval = key(
        "how long it must stand still to count as held, longer than between two commits, above 0, as seconds or 60s",
        "60s",
        default=_JOB.quiet,
    )


_CANARY = CanarySpec()


class Canary(Section):
    """How a group's canary instance is compared with the others."""

    interval: Interval = key("the length of one measured interval, above 0, as seconds or 5s", "5s", default=_CANARY.interval)
    window: Annotated[int, Field(ge=40, le=10_000, strict=True)] = key(
        "how many intervals are compared, a whole number from 40 to 10000", 60, default=_CANARY.window
    )
    margin: Margin = key(
        "how many times later than the others its records may arrive, above 1, at most 100", 1.5, default=_CANARY.margin
    )
    settle: Duration = key("how long after the switch nothing is measured, as seconds or 10s", "10s", default=_CANARY.settle)


_SPARK = SparkSpec()


class Spark(Section):
    """How the audits' jobs are submitted to Spark; the rest is that of the Spark connection and the site."""

    properties: Properties = key(
        "Spark properties of the jobs, values as text, without secrets", {"spark.executor.instances": "2"}, default_factory=dict
    )
    driver_memory: Memory = key("the heap of Spark's driver, a whole number with m or g", "3g", default=_SPARK.driver_memory)
    executor_memory: Memory | None = key("the heap of each executor, a whole number with m or g", "2g", default=None)
    deploy_mode: Literal["client", "cluster"] | None = key(
        "where the driver runs: client (on the worker) or cluster; not set: as the connection says", "client", default=None
    )
    archives: tuple[Location, ...] = key(
        "a list of absolute paths or URIs of archives with a Python environment for the executors, as venv-pack makes them",
        ["/opt/kmigrate-spark.tar.gz#environment"],
        default=(),
    )
    image: str | None = key(
        "the container image of driver and executors on Kubernetes", "registry.example.org/kmigrate-spark:4.2.0", default=None
    )
    kafka_options: Properties = key(
        "options of Spark's Kafka source beside those from the connection to Kafka, values as text, secrets only by reference",
        {"kafka.sasl.mechanism": "GSSAPI"},
        default_factory=dict,
    )


_AUDIT = AuditSpec("", "")
Finding: TypeAlias = Literal["lost", "diverged", "stored_twice", "commit_gap", "redelivered", "reordered", "double_owned"]


class Audit(Section):
    """How records are audited by Spark: after each phase of a migration, and on a schedule."""

    conn_id: ConnectionId = key("the id of Airflow's Spark connection", "spark_default")
    result: FilePath = key(
        "the absolute path of a folder for results that workers, Spark's driver and its executors share",
        "/var/lib/kmigrate/audit",
    )
    events: tuple[FilePath, ...] = key(
        "a list of absolute paths: files or folders of event lines (*.jsonl)", ["/var/lib/kmigrate/events"], default=()
    )
    ledgers: tuple[Location, ...] = key(
        "a list of absolute paths or URIs: folders of events as Parquet", ["s3a://lake/kmigrate/events"], default=()
    )
    events_topic: str | None = key(
        "the topic to which clients write their events, letters, digits, -, _ and .; read with `jars`",
        "kmigrate-events",
        default=None,
        pattern=r"^[A-Za-z0-9_.\-]+$",
        max_length=249,
    )
    topics: tuple[str, ...] | None = key(
        "a list of topics whose logs a migration fingerprints and compares; not set: the newest records of all topics; []: none",
        ["orders"],
        default=None,
    )
    exclude_topics: tuple[str, ...] = key(
        "a list of topics that may be created and deleted; they are not compared if `topics` is left out", ["scratch"], default=()
    )
    resetting_groups: tuple[str, ...] = key(
        "a list of consumer groups that reset their offsets on purpose, such as loaders that read everything at each start",
        ["table-loader"],
        default=(),
    )
    sample_fraction: Share | None = key(
        "the part of each log that is compared, above 0, at most 1 (all, the default for named topics); the newest records always",
        0.05,
        default=None,
    )
    jars: tuple[Location, ...] = key(
        "a list of absolute paths or URIs of the jars with which Spark reads Kafka",
        ["/opt/kmigrate-spark/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"],
        default=(),
    )
    level: Literal["probe", "consumers", "producers"] = key(
        "whose records the events prove: probe (kmigrate's own), producers (and consumers), or consumers only",
        "producers",
        default="producers",
    )
    allow: tuple[Finding, ...] = key(
        "a list of findings that are shown but do not fail the audit: lost, diverged, stored_twice, commit_gap, redelivered, reordered or double_owned",
        [],
        default=(),
    )
    environment: FilePath | None = key(
        "the absolute path of Spark's own Python environment on the workers", "/opt/kmigrate-spark", default=None
    )
    schedule: Schedule | None = key("five fields of cron, or @hourly, @daily, @weekly, @monthly", "0 * * * *", default=None)
    baseline_time: Moment | None = key(
        "a time in UTC such as 2026-01-31T12:00Z: scheduled audits report earlier findings and fail only on later ones",
        "2026-01-31T12:00Z",
        default=None,
    )
    retries: Annotated[int, Field(ge=0, le=1000, strict=True)] = key(
        "how often an inconclusive audit is repeated, a whole number from 0 to 1000", 6, default=_AUDIT.retries
    )
    retry_delay: Interval = key(
        "the time between two attempts, in which more evidence is gathered, above 0, as seconds or 10m",
        "10m",
        default=_AUDIT.retry_delay,
    )
    probe: StrictBool = key(
        "true or false: whether a migration sends and receives records of its own through every broker (topic kmigrate-probe)",
        True,
        default=_AUDIT.probe,
    )
    session: StrictBool = key(
        "true or false: whether a migration's audits share one Spark application, which runs as long as the migration; false: each is a job",
        True,
        default=_AUDIT.session,
    )
    offsets_history: StrictBool = key(
        "true or false: whether the DAG kmigrate_audit also reads all of __consumer_offsets, and finds commits that are in two of its partitions",
        True,
        default=_AUDIT.offsets_history,
    )
    canary: Canary | None = key(
        "how a group's canary is compared with its other instances; without it they are not compared",
        {"margin": 1.5},
        default=None,
    )
    max_lag: Interval = key("how far behind running clients may be, above 0, as seconds or 1m", "60s", default=_AUDIT.max_lag)
    spark: Annotated[Spark, or_default({})] = key(
        "a mapping about how the audits' jobs are submitted to Spark", {"driver_memory": "4g"}, default_factory=Spark
    )


BROKER_PORT, CONTROLLER_PORT = 9092, 9093
DEFAULT_DRIVER: Literal["agent"] = "agent"
CONNECT = (
    "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=3 {host} sudo -n /usr/local/sbin/kmigrate-node serve"
)


def _verify_hostname_key() -> Any:
    expected = "true, or false to confirm that its connection accepts any host name in the servers' certificates (B9f)"
    return key(expected, True, default=True)


class ConnectionSection(Section):
    """Which Airflow connection holds the address and the secrets."""

    conn_id: ConnectionId = key("the id of an Airflow connection", "prod_zk")
    verify_hostname: StrictBool = _verify_hostname_key()


class Hosts(Section):
    """How to reach the nodes' machines; every key may also be set for one node, and counts there."""

    driver: Literal["agent", "gone"] | None = key(
        "a driver: agent (kmigrate-node on each machine), or gone (for a node whose machine is dead for good)",
        "agent",
        default=DEFAULT_DRIVER,
    )
    properties: PropertiesPath | None = key(
        "the absolute path of the node's server.properties", "/etc/kafka/server.properties", default=None
    )
    ssh_conn_id: ConnectionId | None = key(
        "the id of an Airflow SSH connection through which the driver agent reaches each node's `host`", "prod_ssh", default=None
    )
    connect: Command = key(
        "instead of `ssh_conn_id`: a command that runs `kmigrate-node serve` on the node's machine, with a pipe to it",
        CONNECT,
        default=(),
    )
    conn_id: ConnectionId | None = key(
        "the id of an Airflow connection with the environment of `connect`", "prod_hosts", default=None
    )
    stop_timeout: Interval = key(
        "a time above Kafka's own 300 s of controlled shutdown, as seconds or 330s, 10m; a controller gets 60 s at most",
        "330s",
        default=330.0,
    )


class Node(Hosts):
    """What brokers and controllers share."""

    id: int = key("the node's broker.id or node.id, a whole number from 0", 0, ge=0, le=2**31 - 1, strict=True)
    host: HostName = key("a host name or IPv4 address, without port", "kafka0.example.org")
    rack: str | None = key("the node's broker.rack, as text", "a", default=None)


class BrokerSection(Node):
    """One broker."""

    port: Port = key("the port of the listener that clients use, from 1 to 65535", BROKER_PORT, default=BROKER_PORT)
    log_dir: FilePath | None = key(
        "the absolute path of the broker's log directory; used only if its properties file does not exist",
        "/var/lib/kafka",
        default=None,
    )


class ControllerSection(Node):
    """One KRaft controller, on a node of its own."""

    port: Port = key("the port of the controller listener, from 1 to 65535", CONTROLLER_PORT, default=CONTROLLER_PORT)
    log_dir: FilePath = key(
        "the absolute path of the controller's own metadata directory, empty before the migration", "/var/lib/kraft"
    )


class QuorumSection(Section):
    """The controllers' listener; the default is PLAINTEXT on a listener called CONTROLLER."""

    conn_id: ConnectionId | None = key(
        "the id of an Airflow connection with the controller listener's TLS and SASL", "prod_controllers", default=None
    )
    verify_hostname: StrictBool = _verify_hostname_key()
    listener: str = key("the controllers' listener name", "CONTROLLER", default="CONTROLLER", pattern=r"^[A-Za-z0-9_.\-]+$")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = key(
        "the controller listener's protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL", "SASL_SSL", default="PLAINTEXT"
    )
    properties: Properties = key(
        "keys for every controller's server.properties, values as text, secrets only by reference",
        {"num.io.threads": "8"},
        default_factory=dict,
    )


class StageSection(Section):
    """Keys for the files of one stage alone, over all others. For what differs between ZooKeeper and KRaft mode, such as an authorizer's class and settings; an empty class takes the file's away. A rollback restores the brokers' own files."""

    broker_migration: Properties = key(
        "keys for brokers in migration mode, values as text, secrets only by reference",
        {"com.example.rules.source": "both"},
        default_factory=dict,
    )
    broker_kraft: Properties = key(
        "the same for brokers in KRaft mode", {"authorizer.class.name": "com.example.KRaftRules"}, default_factory=dict
    )
    controller_migration: Properties = key(
        "the same for controllers until the finalization",
        {"authorizer.class.name": "com.example.KRaftRules"},
        default_factory=dict,
    )
    controller_final: Properties = key(
        "the same for controllers from the finalization on",
        {"authorizer.class.name": "com.example.KRaftRules"},
        default_factory=dict,
    )


_DEFAULT = Policy()


class PolicySection(Section):
    """The policy: how careful to be."""

    min_soak: Duration = key("the least time in dual-write, as seconds or 24h, 90m", "24h", default=_DEFAULT.min_soak)
    max_hybrid: Duration = key(
        "the longest time from the start of the controllers until the last broker runs in KRaft mode, as seconds or 4h, 90m; afterwards every observation raises an alarm (T06)",
        "4h",
        default=_DEFAULT.max_hybrid,
    )
    canary_bake: Duration = key(
        "how long to watch the first broker of each roll, which is rolled back if it is worse, as seconds or 10m; 0: not at all",
        "10m",
        default=_DEFAULT.canary_bake,
    )
    stable_samples: Count = key(
        "how many healthy observations in a row are needed, a whole number from 1", 3, default=_DEFAULT.stable_samples
    )
    sample_interval: Interval = key(
        "the time between two observations, above 0, as seconds or 300ms; half of it between those that confirm each other",
        "300ms",
        default=_DEFAULT.sample_interval,
    )
    fast_failover: bool = key(
        "true or false: shorter waits of fetches and heartbeats in the files that the rolls write, and elections in batches",
        False,
        default=_DEFAULT.fast_failover,
        strict=True,
    )
    elect_batch: Count = key(
        "partitions per preferred election under fast_failover, a whole number from 1", 10, default=_DEFAULT.elect_batch
    )
    start_timeout: Interval = key(
        "how long a started node may take to rejoin every ISR, above 0, as seconds or 10m", "10m", default=_DEFAULT.start_timeout
    )
    copy_timeout: Interval = key(
        "how long the metadata copy may take, above 0, as seconds or 10m", "10m", default=_DEFAULT.copy_timeout
    )


_APPROVERS = ApproverSpec(())


class Approvers(Section):
    """Who may approve. Airflow shows the request to every user; the answer of any other user does not count."""

    users: tuple[str, ...] = key(
        "a list of users' ids: with Airflow's simple auth manager their names, with FAB the numbers of its user list",
        ["ann", "bob"],
        min_length=1,
    )
    required: Annotated[int, Field(ge=1, le=2, strict=True)] = key(
        "1 or 2: how many different approvers must approve the finalization", 2, default=_APPROVERS.required
    )
    reason: StrictBool = key("true or false: whether an approval must have a reason", True, default=_APPROVERS.reason)
    expires: Interval = key(
        "how long a request waits for an answer, and how long its approval counts before the finalization begins, as seconds or 24h",
        "24h",
        default=_APPROVERS.expires,
    )
    not_requester: StrictBool = key(
        "true or false: whether the user who started the run is barred from approving it",
        True,
        default=_APPROVERS.not_requester,
    )
    signing_conn_id: str = key(
        "an Airflow connection of the type generic, whose password signs approvals: it protects them where any client may write to ZooKeeper",
        "kmigrate_signs",
        default=_APPROVERS.signing_conn_id,
    )


class Notifier(Section):
    """One way by which messages reach people: any notifier of Airflow."""

    notifier: str = key(
        "the import path of a notifier class",
        "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
        pattern=r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+$",
    )
    arguments: Annotated[dict[str, Any], or_default({})] = key(
        "its arguments, without secrets; templates may use kmigrate.title, kmigrate.text, kmigrate.links and kmigrate.html (both as the body of a mail)",
        {"to": "ops@example.org", "subject": "{{ kmigrate.title }}", "html_content": "{{ kmigrate.html }}"},
        default_factory=dict,
    )


TimedPhase: TypeAlias = Literal["pre_migration", "first_roll", "copy", "second_roll", "dual_write", "finalize"]


_CONFIRMS = "; `verify_hostname: false` confirms that this connection accepts any host name in the servers' certificates (B9f)"


class ClusterFile(Section):
    """One Kafka cluster that kmigrate may move from ZooKeeper to KRaft."""

    name: str = key(
        "a name of letters, digits, - and _ (it becomes a part of DAG ids)", "prod", pattern=r"^[A-Za-z0-9_-]+$", max_length=100
    )
    cluster_id: str = key(
        "the cluster's id, 22 letters, digits, - and _, as the znode /cluster/id has it",
        "q1Sh-9_ISia_zwGINzRvyQ",
        pattern=r"^[A-Za-z0-9_-]{22}$",
    )
    zookeeper: ConnectionSection = key(f"a mapping with conn_id{_CONFIRMS}", {"conn_id": "prod_zk"})
    kafka: ConnectionSection = key(f"a mapping with conn_id{_CONFIRMS}", {"conn_id": "prod_kafka"})
    kafka_release: str | None = key(
        "the release that every broker runs, of Kafka, of Confluent Platform (7.9.2-ccs) or as another vendor's jar names it (3.7.0.redhat-00007); brokers report only Kafka's first two numbers",
        "3.9.2",
        default=None,
        pattern=r"^(cp-)?\d+\.\d+\.\d+([.-][0-9A-Za-z][0-9A-Za-z.-]*)?$",
    )
    hosts: Annotated[Hosts, or_default({})] = key("a mapping of defaults for all nodes", {"driver": "agent"}, default=Hosts())
    brokers: tuple[BrokerSection, ...] = key("a list of every broker of the cluster", [{"id": 0, "host": "kafka0"}], min_length=1)
    controllers: tuple[ControllerSection, ...] = key(
        "a list of the new KRaft controllers, best three",
        [{"id": 3000, "host": "ctl0", "log_dir": "/var/lib/kraft"}],
        min_length=1,
    )
    quorum: Annotated[QuorumSection, or_default({})] = key(
        "a mapping about the controllers' listener", {"listener": "CONTROLLER"}, default=QuorumSection()
    )
    stage_properties: Annotated[StageSection, or_default({})] = key(
        "a mapping of keys for the files of one stage alone",
        {"broker_kraft": {"authorizer.class.name": "com.example.KRaftRules"}},
        default=StageSection(),
    )
    policy: Annotated[PolicySection, or_default({})] = key("a mapping of limits", {"min_soak": "24h"}, default=PolicySection())
    groups: Annotated[tuple[GroupSection, ...], or_default(())] = key(
        "a list of consumer groups that move off ZooKeeper coordination",
        [{"name": "billing", "switch": "ssh {host} sudo billing-as {kind}", "instances": [{"name": "billing-0"}]}],
        default=(),
    )
    later_groups: Annotated[tuple[str, ...], or_default(())] = key(
        "a list of consumer groups that may still use ZooKeeper when the first roll begins; they work until the last broker leaves "
        "ZooKeeper mode, and its restart waits for them (G21)",
        ["legacy-report"],
        default=(),
    )
    groups_schedule: Schedule | None = key(
        "when the DAG that moves groups starts: five fields of cron, or @hourly, @daily, @weekly, @monthly",
        "0 22 * * *",
        default=None,
    )
    group_progress: Annotated[GroupProgressSection, or_default({})] = key(
        "a mapping about the consumer groups that must continue after each broker's restart",
        {"exclude": ["nightly-loader"]},
        default_factory=GroupProgressSection,
    )
    spark_jobs: Annotated[tuple[SparkJob, ...], or_default(())] = key(
        "a list of Spark streaming queries that read the cluster",
        [{"name": "orders-to-lake", "checkpoint": "/lake/checkpoints/orders"}],
        default=(),
    )
    audit: Audit | None = key(
        "a mapping about audits by Spark; without it there are none",
        {"conn_id": "spark_default", "result": "/var/lib/kmigrate/audit", "events": ["/var/lib/kmigrate/events"]},
        default=None,
    )
    approvers: Approvers | None = key(
        "a mapping about who may approve; without it every user who may edit the DAG", {"users": ["ann", "bob"]}, default=None
    )
    notify: Annotated[tuple[Notifier, ...], or_default(())] = key(
        "a list of Airflow notifiers for requests, failed tasks and alarms",
        [{"notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "arguments": {"to": "ops@example.org"}}],
        default=(),
    )
    runbook_url: str | None = key(
        "the address at which people read docs/runbook.md; messages link to its entries",
        "https://wiki.example.org/kmigrate/runbook",
        default=None,
        pattern=r"^https?://[^\s#]+$",
    )
    controller_metrics: str | None = key(
        "an address without secrets, with {host} or {id} of each controller in it, at which an exporter (Prometheus's text) or Jolokia shows Kafka's own gauges: the watch reports it if they contradict kmigrate (G41)",
        "http://{host}:9404/metrics",
        default=None,
        pattern=r"^https?://[^\s@#{}]*(?:\{(?:host|id)\}[^\s@#{}]*)+$",
    )
    rehearsal: StrictBool = key(
        "true for a cluster that may be lost: the conf of a run may then approve beforehand", False, default=False
    )
    windows: Annotated[tuple[Window, ...], or_default(()), BeforeValidator(_as_list)] = key(
        "a list of daily times in UTC in which a restart of the migration may begin; a rollback may always begin one",
        ["22:00-04:00"],
        default=(),
    )
    stop_after: Annotated[tuple[StopPoint, ...], or_default(()), BeforeValidator(_as_list)] = key(
        "where the migration waits until an approver lets it continue: first_roll, dual_write, hybrid (one broker in KRaft mode), soak, or a list of them",
        ["first_roll"],
        default=(),
    )
    deadlines: Annotated[dict[TimedPhase, Interval], or_default({})] = key(
        "a mapping of how long a phase may last before the watch raises an alarm (T08): pre_migration, first_roll, copy, second_roll, dual_write (soak and approval), finalize; a phase that is left out has no limit",
        {"second_roll": "4h", "dual_write": "7d"},
        default_factory=dict,
    )


RENAMED: Mapping[str, str] = {
    "audit.behind": "max_lag",
    "audit.extend_by": "retry_delay",
    "audit.extensions": "retries",
    "audit.ignored": "exclude_topics",
    "audit.judged_from": "baseline_time",
    "audit.rewinding": "resetting_groups",
    "audit.share": "sample_fraction",
    "audit.tolerated": "allow",
    "quorum.security": "security_protocol",
    "spark_jobs.repeats_harmless": "idempotent_sink",
}
"""Key that older cluster files have, with its sections -> its name now. The error (F04) names the new key."""

WAYS = ("ssh_conn_id", "connect")
"""The ways to an agent, of which a node has one."""


def with_defaults(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A node's own keys over those of `hosts`; its own way to the agent replaces the default one, whichever that is."""
    replaced = WAYS if any(own.get(way) for way in WAYS) else ()
    return {key: value for key, value in defaults.items() if key not in replaced} | dict(own)


REMOVED_HOST_KEYS = frozenset({"start", "stop", "status", "read", "write", "format", "wipe", "kill_after", "state"})
"""Keys of the removed drivers `command` and `local`. The error (F04) prints the section that replaces them."""

DEFAULT_PORTS = {NodeRole.BROKER: BROKER_PORT, NodeRole.CONTROLLER: CONTROLLER_PORT}


def schema() -> dict[str, Any]:
    """The JSON Schema for editors; `cluster.schema.json` is this, written out."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ClusterFile.model_json_schema()}


_HEAD = """\
# The cluster file

`kmigrate check --reference` writes this page from the models that read the file. `kmigrate check FILE`
checks a cluster file, and an editor can check it with `airflow_provider_kmigrate/cluster.schema.json`. The [quick start](quick-start.md)
has an example. Keys in **bold** are required. Times are seconds, or text such as `300ms`, `90s`, `10m`, `24h`.
"""


def render_reference() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_render_section("", ClusterFile)])


def _render_section(path: str, model: type[BaseModel]) -> Iterator[str]:
    subsections = {
        name: subsection for name, field in model.model_fields.items() if (subsection := _find_subsection(field)) is not None
    }
    yield f"## {f'`{path}`' if path else 'At the top'}\n"
    yield f"{(model.__doc__ or '').strip()}\n"
    if issubclass(model, Node):
        yield "Every key of `hosts` may also stand here; it overrides `hosts`.\n"
    yield "| key | default | example | what |\n| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        if not (issubclass(model, Node) and name in Hosts.model_fields):
            yield _render_row(name, field, f"{path}.{name}".lstrip(".") if name in subsections else "")
    yield ""
    for name, below in subsections.items():
        yield from _render_section(f"{path}.{name}".lstrip("."), below)


def _render_row(name: str, field: FieldInfo, below: str) -> str:
    title = f"**`{name}`**" if field.is_required() else f"`{name}`"
    what = (field.description or "").replace("|", "\\|")
    default = "" if field.is_required() or below else _render_default(field)
    example = f"`{_value_as_text(field.examples[0])}`" if field.examples else ""
    if below:
        example = f"[below](#{below.replace('.', '')})"
    return f"| {title} | {default} | {'' if example == default else example} | {what} |"


def _find_subsection(field: FieldInfo) -> type[BaseModel] | None:
    subsection = find_section_model(field.annotation)
    return None if subsection is ConnectionSection else subsection


def _render_default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value in (None, (), {}, ""):
        return ""
    timed = any(isinstance(validator, BeforeValidator) and validator.func is parse_seconds for validator in field.metadata)
    return f"`{_format_duration(value) if timed else _value_as_text(value)}`"


def _value_as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _format_duration(value: float) -> str:
    """As one would write it: 86400 is 24h, 90 is 90s, 0.2 is 200ms."""
    units = (("h", 3600.0), ("m", 60.0), ("s", 1.0))
    unit, size = next((unit_size for unit_size in units if value >= unit_size[1] and value % unit_size[1] == 0), ("ms", 0.001))
    return f"{value / size:g}{unit}"


def find_section_model(annotation: object) -> type[BaseModel] | None:
    """The model of a key's value, or of a list's items; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(find_section_model, get_args(annotation)) if model), None)
