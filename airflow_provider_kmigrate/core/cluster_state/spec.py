"""A cluster file as frozen values: `spec.load` reads it, `spec.model` describes each key. Times in seconds, paths absolute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, TypeAlias

CONTROLLER_STOPS = 60.0
"""Seconds within which a controller stops, if it ever does: it has no leaders to move. 0.3 to 5.3 s were measured."""


#: Names that each machine has for itself: RFC 6761, and /etc/hosts of Debian and Red Hat.
_OWN_NAME = re.compile(r"(?:.+\.)?localhost|localhost[46]?(?:\.localdomain[46]?)?|ip6-(?:localhost|loopback)")
_SHORT_LOOPBACK = re.compile(r"127(?:\.[0-9]{1,3}){1,2}")  # 127.1, as inet_aton reads it
_FIRST_LOOPBACK = frozenset({"127.0.0.1", "127.1", "127.0.1", "::1"})


def simplify_path(path: str) -> str:
    """An absolute path without what does not change where it leads: doubled slashes, single dots, a slash at its end. A relative one as it is.

    Two dots stay: behind a link they lead elsewhere.
    """
    return "/" + "/".join(part for part in path.split("/") if part not in {"", "."}) if path.startswith("/") else path


def normalize_host(host: str) -> str:
    """The machine that a host name or address means, in one spelling: no capitals, brackets or dot at the end, `localhost` for its own address.

    Other names of one machine are not known here: no name is resolved. 127.0.0.2 and the like may be machines of their own.
    """
    name = _strip_host(host)
    address = _parse_address(name)
    text = name if address is None else str(address)
    is_own = _OWN_NAME.fullmatch(name) or text in _FIRST_LOOPBACK or (address is not None and address.is_unspecified)
    return "localhost" if is_own else text


def is_loopback(host: str) -> bool:
    """True if a host means each machine itself: by a name such as `localhost` or `ip6-localhost`, a loopback address in any form, or 0.0.0.0."""
    name = _strip_host(host)
    address = _parse_address(name)
    if address is None:
        return bool(_OWN_NAME.fullmatch(name) or _SHORT_LOOPBACK.fullmatch(name))
    return address.is_loopback or address.is_unspecified


def _strip_host(host: str) -> str:
    return host.strip().lower().rstrip(".").strip("[]")


def _parse_address(name: str) -> IPv4Address | IPv6Address | None:
    """An address, that of IPv4 if it is in IPv6's form; None for a name."""
    try:
        address = ip_address(name)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


class NodeRole(StrEnum):
    """What a node is; kmigrate moves clusters with dedicated controllers only."""

    BROKER = "broker"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class HostSpec:
    """How to reach a node's machine. `connect` is an argument list; `{id}`, `{host}` and `{properties}` are filled in.

    An agent is behind `connect` or behind the Airflow SSH connection `ssh_conn_id`, never behind both.

    `stop_timeout`: a broker may take 300 s to stop (controlled shutdown in migration mode); for a controller see `NodeSpec`.
    """

    driver: str  # agent | gone: a machine that is dead for good
    properties: str = ""
    connect: tuple[str, ...] = ()  # runs `kmigrate-node serve` on the node's machine, with a pipe to it
    stop_timeout: float = 330.0
    conn_id: str = ""  # the connection whose environment `connect` gets; empty: none
    ssh_conn_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One broker or controller; `port` is the listener that kmigrate talks to (a controller's: its CONTROLLER listener)."""

    id: int
    role: NodeRole
    host: str
    port: int
    hosts: HostSpec
    rack: str | None = None
    log_dir: str | None = None  # a controller's metadata directory

    @property
    def name(self) -> str:
        """The role and id, such as `broker 1`."""
        return f"{self.role} {self.id}"

    @property
    def stop_timeout(self) -> float:
        """Seconds after which its stop counts as failed."""
        return self.hosts.stop_timeout if self.role is NodeRole.BROKER else min(self.hosts.stop_timeout, CONTROLLER_STOPS)

    @property
    def endpoint(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of a migration, times in seconds. Defaults suit production; rehearsals shorten them."""

    min_soak: float = 86_400.0
    max_hybrid: float = 14_400.0
    canary_bake: float = 600.0
    stable_samples: int = 3
    sample_interval: float = 0.2
    fast_failover: bool = False
    elect_batch: int = 10  # partitions per preferred election
    start_timeout: float = 600.0  # a broker with large logs may need long to come back into every ISR
    copy_timeout: float = 600.0


class HoldPolicy(StrEnum):
    """When a Spark job is held: a clean roll of the brokers needs no hold (measured), a partition without leader may kill it."""

    NEVER = "never"
    RISKY = "risky"  # before steps that may leave partitions without a leader for a while
    ALWAYS = "always"  # before every step that restarts brokers

    def should_hold(self, *, risky: bool) -> bool:
        """Whether to hold before a step of that kind."""
        return self is HoldPolicy.ALWAYS or (risky and self is HoldPolicy.RISKY)


@dataclass(frozen=True, slots=True)
class SparkJobSpec:
    """One streaming query of a Spark job that reads the cluster; `hold_folder` is empty for `_kmigrate` in its checkpoint.

    With `hold_command` and `release_command` it is a job of any kind, which these commands hold and release; `group` is the consumer
    group whose committed offsets show where it stands, empty: its checkpoint does. `quiet` in seconds.
    """

    name: str
    checkpoint: str = ""
    topics: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    hold: HoldPolicy = HoldPolicy.RISKY
    hold_folder: str = ""
    hold_timeout: float = 900.0
    idempotent_sink: bool = False
    conn_id: str = ""
    hold_command: tuple[str, ...] = ()
    release_command: tuple[str, ...] = ()
    command_conn_id: str = ""
    group: str = ""
    quiet: float = 60.0


class GroupWay(StrEnum):
    """How a consumer group leaves ZooKeeper."""

    MIGRATING = "migrating"  # one instance at a time, as a migrating consumer between (KIP-125)
    CUTOVER = "cutover"  # all instances stop, offsets are copied, the new version starts


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """A systemd unit of a consuming application, behind the agent of its machine; the agent knows it by its name."""

    unit: str
    host: str
    hosts: HostSpec
    stop_timeout: float  # seconds

    @property
    def role(self) -> str:
        """What a request to the agent names."""
        return self.unit

    @property
    def name(self) -> str:
        """The unit and its machine, for messages."""
        return f"{self.unit} on {self.host}"


Served: TypeAlias = NodeSpec | UnitSpec  # what an agent stops and starts


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One process of a consuming application, and how it is restarted as another kind of member.

    `name` identifies its members: `consumer.id` in ZooKeeper, `client.id` in Kafka, or the host name of legacy consumers without a
    consumer.id. `switch` is an argument list with places `{group}`, `{instance}`, `{host}` and `{kind}` (zookeeper, migrating,
    kafka; in a cutover zookeeper, stopped, kafka); an HTTP `webhook` gets the same. `units`: the unit that runs it as each kind, all
    others stopped.
    """

    name: str
    host: str = ""
    switch: tuple[str, ...] = ()
    webhook: str = ""
    units: Mapping[str, UnitSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One consumer group that moves off ZooKeeper coordination.

    Waves run one after another, groups of one wave in the file's order. `window`: a daily time in UTC, outside of which no group
    of it begins; empty: any time. `commit_within`: the legacy consumer commits once a minute by default. `quiet`: seconds of a cutover
    in which no client may own, commit or be registered before offsets are copied. `by_hand`: people stop and start the instances of
    a cutover when they are asked to; what counts is what is observed, as with a command. `side_by_side`: the application allows that the old
    and the new version process the same records, so a cutover begins with a canary.
    """

    name: str
    instances: tuple[InstanceSpec, ...]
    wave: int = 1
    window: str = ""
    bake: float = 600.0
    commit_within: float = 150.0
    switch_timeout: float = 300.0
    conn_id: str = ""
    webhook_tls: bool = True  # false: it is confirmed that a webhook's address is http
    way: GroupWay = GroupWay.MIGRATING
    quiet: float = 5.0
    by_hand: bool = False
    side_by_side: bool = False

    def instance(self, name: str) -> InstanceSpec:
        """Raises KeyError if the file names no such instance."""
        for instance in self.instances:
            if instance.name == name:
                return instance
        raise KeyError(f"{name} of group {self.name}")


def match_instance(name: str, group: str, instances: Iterable[str]) -> str | None:
    """The instance that a name means: `<group>_<instance>`, `<instance>`, or either with `-` and more behind it; the longest of several."""
    possible_names = (name, name.removeprefix(f"{group}_"))  # the whole id may be the name of an instance
    candidates = tuple(instances)
    matches = (instance for own in possible_names for instance in candidates if own == instance or own.startswith(f"{instance}-"))
    return max(matches, key=len, default=None)


PROBE_GROUP = "kmigrate-probe"  # the consumer group of the probe


@dataclass(frozen=True, slots=True)
class GroupProgressSpec:
    """Which consumer groups must continue after a broker's restart (`core.migration.group_progress`): all but `exclude`.

    `max_lag`: group -> records that each of its partitions may be behind without having to move. `commit_within`: seconds that a
    partition with lag may go without a commit before its group is named.
    """

    exclude: tuple[str, ...] = ()
    max_lag: Mapping[str, int] = field(default_factory=dict)
    commit_within: float = 150.0


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """How a group's canary instance is compared with the others, by how late their records come (`core.audit.canary`)."""

    interval: float = 5.0
    window: int = 60
    margin: float = 1.5
    settle: float = 10.0


@dataclass(frozen=True, slots=True)
class SparkSpec:
    """How the audits' jobs are submitted; what is empty is left to the Spark connection and the site.

    `properties`: of the job. `archives`: with Python's environment for the executors. `image`: of driver and executors on Kubernetes.
    `kafka_options`: of Spark's Kafka source, instead of what follows from the cluster's connection.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    driver_memory: str = "3g"
    executor_memory: str = ""
    deploy_mode: str = ""
    archives: tuple[str, ...] = ()
    image: str = ""
    kafka_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditSpec:
    """How Spark audits records.

    `events_topic`: each audit continues where the last one ended. `topics` None: all but `exclude_topics` and those of Kafka and
    kmigrate; without `sample_fraction` only each partition's newest records of them. `environment` empty: Spark's Python is that
    of the PATH. `offsets_history`: the audit's DAG also judges where all commits are (`core.offsets_topic.offsets_repair`). `session`: a migration's audits share one Spark application. `max_lag`: clients active within so many seconds still run, and may be that far behind the end of a log.
    """

    conn_id: str
    result: str
    events: tuple[str, ...] = ()
    ledgers: tuple[str, ...] = ()
    events_topic: str = ""
    topics: tuple[str, ...] | None = None
    exclude_topics: tuple[str, ...] = ()
    resetting_groups: tuple[str, ...] = ()
    sample_fraction: float | None = None
    jars: tuple[str, ...] = ()
    level: str = "producers"
    allow: tuple[str, ...] = ()
    environment: str = ""
    schedule: str = ""
    baseline_time: str = ""
    retries: int = 6
    retry_delay: float = 600.0
    probe: bool = True
    session: bool = True
    offsets_history: bool = False
    max_lag: float = 60.0
    canary: CanarySpec | None = None
    spark: SparkSpec = SparkSpec()


@dataclass(frozen=True, slots=True)
class ApproverSpec:
    """Who may answer an approval: ids of users, as Airflow's auth manager has them; it names no groups to a task.

    `required`: so many different ones must approve the finalization; one is enough for every other answer. `reason`: an approval
    must have one. `expires`: seconds that a request waits for an answer, and that its approval counts until the finalization begins.
    `not_requester`: who started the run may not approve it. `signing_conn_id`: the connection whose password signs approvals; empty: none.
    """

    users: tuple[str, ...]
    required: int = 1
    reason: bool = False
    expires: float = 86_400.0
    not_requester: bool = False
    signing_conn_id: str = ""


@dataclass(frozen=True, slots=True)
class NotifierSpec:
    """An Airflow notifier by its import path, and its arguments, whose templates see the message as `kmigrate`."""

    notifier: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class StopPoint(StrEnum):
    """A place at which a migration waits until an approver lets it continue, or ends; the value is the stage that is over then."""

    FIRST_ROLL = "first_roll"
    DUAL_WRITE = "dual_write"
    HYBRID = "hybrid"  # the first broker of the second roll runs in KRaft mode
    SOAK = "soak"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One cluster file. `path` is where it was read; connection ids point to the secrets."""

    name: str
    cluster_id: str
    zookeeper_conn_id: str
    kafka_conn_id: str
    brokers: tuple[NodeSpec, ...]
    controllers: tuple[NodeSpec, ...]
    policy: Policy = Policy()
    controller_listener: str = "CONTROLLER"
    controller_security: str = "PLAINTEXT"
    controller_security_written: bool = True  # in the cluster file; false: its default
    controller_conn_id: str = ""  # TLS and SASL of the controller listener; empty: as the Kafka connection has them
    unverified: frozenset[str] = frozenset()  # sections whose connection need not verify host names: `verify_hostname: false`
    controller_properties: Mapping[str, str] = field(default_factory=dict)  # extra keys for every controller
    stage_properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by the cluster file's name of a stage
    kafka_release: str = ""  # the release that every broker runs, such as 3.9.2; brokers report only 3.9
    path: str = ""
    groups: tuple[GroupSpec, ...] = ()
    later_groups: tuple[str, ...] = ()  # groups that may still use ZooKeeper when the first roll begins
    groups_schedule: str = ""  # when groups are moved: a cron expression or a preset; empty: only by hand
    group_progress: GroupProgressSpec = field(default_factory=GroupProgressSpec)
    spark_jobs: tuple[SparkJobSpec, ...] = ()
    audit: AuditSpec | None = None
    approvers: ApproverSpec | None = None  # None: every user who may edit the DAG
    notify: tuple[NotifierSpec, ...] = ()
    runbook_url: str = ""  # where operators read the runbook; empty: messages name the command that prints an entry
    controller_metrics: str = ""  # where each controller shows Kafka's gauges, with {host} or {id}; empty: they are not read
    rehearsal: bool = False  # a run's conf may approve beforehand
    windows: tuple[str, ...] = ()  # daily times in UTC in which a restart of a migration may begin; none: any time
    stop_after: tuple[StopPoint, ...] = ()
    deadlines: Mapping[str, float] = field(default_factory=dict)  # seconds that a phase may last, by its key in the cluster file

    @property
    def probe_folder(self) -> str:
        """The folder of the probe's runs, one below it for each; empty if the cluster file wants no probe."""
        return f"{self.audit.result}/{self.name}/probe" if self.audit and self.audit.probe else ""

    def nodes(self) -> Iterator[NodeSpec]:
        """All brokers, then all controllers."""
        yield from self.brokers
        yield from self.controllers

    def units(self) -> Iterator[UnitSpec]:
        """The units of consuming applications that agents stop and start."""
        yield from (unit for group in self.groups for instance in group.instances for unit in instance.units.values())

    def node(self, role: NodeRole, node_id: int) -> NodeSpec:
        """Raises KeyError if the file names no such node."""
        return {(node.role, node.id): node for node in self.nodes()}[role, node_id]

    def spark_job(self, name: str) -> SparkJobSpec:
        """Raises KeyError if the file names no such job."""
        return {job.name: job for job in self.spark_jobs}[name]

    @property
    def voters(self) -> str:
        """The value of controller.quorum.voters (static quorum, KIP-595)."""
        return ",".join(f"{node.id}@{node.endpoint}" for node in self.controllers)
