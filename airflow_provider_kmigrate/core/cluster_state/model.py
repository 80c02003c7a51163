"""What was observed of a cluster: `ClusterView` and its parts. What is decided about it: `core.cluster_state.decision`.

A `ClusterView` is one frozen snapshot. Whatever could not be read is `None`, never a default that looks healthy, and has a
`Reason` in `ClusterView.unknowns`. Times are seconds; `taken_at` is on the monotonic clock of the observing process.

A znode's age (`LeaderTime.age`) lets one observation show what otherwise takes two. The answer to a write of ours gives the time
of ZooKeeper's leader, as exactly as that request was quick, and with it the age of every znode that the same leader wrote.

Kafka's metadata versions (`level_of`): inter.broker.protocol.version, metadata.version and the feature level name the same thing.

What preflight reads beside a view (brokers' software and disks, more of ZooKeeper) is here too; None always means: not reported.
Of settings in ZooKeeper no value is kept, because passwords are in the same places. Brokers do not report their own secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, StrEnum, auto
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow_provider_kmigrate.core.reasons import CODE_OF, ENTRIES
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import printable

_TERM = 32  # the high half of a zxid counts the leaders of an ensemble (zxid: ZooKeeper's internals, "Guarantees, Properties, and Definitions")


class Age(NamedTuple):
    """The seconds since a znode was written are between these two."""

    least: float
    most: float


class Written(NamedTuple):
    """When a znode was last written, from its stat: seconds since the epoch by its leader's clock, and the zxid."""

    at: float
    zxid: int


class RequestTime(NamedTuple):
    """A request and its answer, in seconds on our monotonic clock; what it reports was true at some moment in between."""

    asked: float
    answered: float


@dataclass(frozen=True, slots=True)
class LeaderTime:
    """A write of ours and when we made it."""

    ours: Written
    made: RequestTime

    def age_of(self, znode: Written, read_at: RequestTime) -> Age | None:
        """The age of a znode that was `read_at` later.

        None if another leader, with another clock, wrote it, or its time is in the future. Wrong if a clock was set since our
        write, or ours was suspended (a sleeping machine): an age alone proves nothing.
        """
        if znode.zxid >> _TERM != self.ours.zxid >> _TERM:
            return None
        written_after = znode.at - self.ours.at
        least, most = read_at.asked - self.made.answered - written_after, read_at.answered - self.made.asked - written_after
        return Age(max(0.0, least), most) if most >= 0.0 else None


_FIRST_LEVEL = {"3.4": (8, 1), "3.5": (9, 3), "3.6": (12, 3), "3.7": (15, 5), "3.8": (20, 1), "3.9": (21, 1)}
"""Release -> the feature level of its IV0, and how many variants it has (`org.apache.kafka.server.common.MetadataVersion`)."""


def level_of(version: str) -> int | None:
    """The feature level of `3.9-IV0`, or of `3.9` or `3.9.2`: its latest variant; None for versions before the bridge releases."""
    release, _, variant = version.strip().partition("-IV")
    first, count = _FIRST_LEVEL.get(".".join(release.split(".")[:2]), (None, 0))
    if first is None or not (variant or "0").isdecimal():
        return None
    index = int(variant) if variant else count - 1
    return first + index if index < count else None


def version_of(level: int) -> str | None:
    """The full name of a feature level, such as `3.9-IV0` for 21; None for levels that no bridge release knows."""
    for release, (first, count) in _FIRST_LEVEL.items():
        if first <= level < first + count:
            return f"{release}-IV{level - first}"
    return None


def same_version(version: str, other: str) -> bool:
    """Whether two names mean one metadata version; unknown names must be equal."""
    level = level_of(version)
    return version.strip() == other.strip() if level is None else level == level_of(other)


if TYPE_CHECKING:
    from airflow_provider_kmigrate.core.events.model import TopicPartition
    from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, GroupSweep


class BrokerMode(StrEnum):
    """The mode of a running broker, read from its ApiVersions answer (api key 55, tag 3)."""

    ZOOKEEPER = "zookeeper"
    MIGRATION = "migration"  # still a ZooKeeper broker, registered with the KRaft controllers too
    KRAFT = "kraft"


class ProcessState(StrEnum):
    """What a host says of a node's process."""

    RUNNING = "running"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


class Fields(Flag):
    """What one observation reads; a step names what it decides on, so that no observation reads more than it needs."""

    PROCESSES = auto()  # each node's process, from its host
    FILES = auto()  # each node's properties and meta.properties, from its host
    BROKERS = auto()  # each broker's mode, peers and controller, from the broker itself
    CONTROLLERS = auto()  # each controller's flag, from the controller itself
    QUORUM = auto()  # DescribeQuorum, from the KRaft leader
    ZOOKEEPER = auto()  # the znodes of ZkView
    GROUPS = auto()  # live groups under /consumers
    PARTITIONS = auto()  # every partition's leader and ISR
    MIN_INSYNC = auto()  # min.insync.replicas of every topic
    COORDINATORS = auto()  # each broker's counts of coordinator partitions, and the consumer groups
    CLIENT_METRICS = auto()  # client-metrics subscriptions, which wedge the dual-write (measured)
    TOPICS = auto()  # every topic's metadata twice: as ZooKeeper has it and as the brokers have it
    STORED = auto()  # every other kind of metadata twice: as ZooKeeper has it and as KRaft has it
    STATE_EPOCH = auto()  # the highest controller_epoch in any partition's state znode
    GROUP_MEMBERS = auto()  # members, mode, owners and offsets of the consumer groups that a step names
    REASSIGNMENTS = auto()  # partitions that are being reassigned, from the controller
    ENSEMBLE = auto()  # every ZooKeeper server of the connection, from itself
    BACKUP = auto()  # the originals in the backup; a step's process reads them, no observer
    GROUP_PROGRESS = auto()  # offsets and lag of every consumer group with members; the members of those that a step names
    HOSTED_GROUPS = auto()  # each broker's consumer groups with offsets: those listed (COORDINATORS), those that a step names
    PROBE = auto()  # what the probe measures of its own records; a step's process reads it, no observer

    POSITION = BROKERS | CONTROLLERS | ZOOKEEPER | QUORUM  # what shows the phase
    NODES = PROCESSES | FILES  # what the nodes' hosts report
    ANSWERS = PROCESSES | BROKERS | CONTROLLERS  # what shows whether a node that was just started answers
    METADATA = TOPICS | STORED  # all metadata, of both sides


class Cause(StrEnum):
    """What a decision must recognise in a reason. Codes are for operators; decisions compare causes."""

    UNFLAGGED_CONTROLLER = auto()  # a controller answers without the migration flag
    FLAG_IN_FILE_ONLY = auto()  # a controller runs without the migration flag, and its file has it
    CONTROLLER_UNRESPONSIVE = auto()
    BROKER_UNRESPONSIVE = auto()
    UNNAMED_BROKER = auto()  # the cluster file does not name a broker that belongs to the cluster
    LEFT_BEHIND = auto()  # a ZooKeeper-mode broker after the finalization
    FINALIZED = auto()  # no rollback is possible any more
    DUAL_WRITE_STALLED = auto()
    OUT_OF_ISR = auto()  # a restarted broker is not back in every ISR
    UNDER_REPLICATED = auto()  # replicas are out of their ISRs, whose they may be
    HANDOVER_OBSERVED = auto()  # /migration must stay unchanged for a moment before the handover
    ZOOKEEPER_MISSES = auto()  # ZooKeeper misses what KRaft has, and holds nothing else instead
    SIDES_DIFFER = auto()  # ZooKeeper and KRaft, in another way
    DUAL_WRITE_LAGS = auto()
    NO_LEADER = auto()  # of the quorum
    NO_CONTROLLER = auto()  # neither KRaft nor ZooKeeper has one, for so long that it is no failover
    VOTERS_BEHIND = auto()
    COORDINATORS_UNKNOWN = auto()  # a broker does not say with which count it computes them
    NOT_READ = auto()  # a condition that could not be checked; another reason says why
    GROUP_UNHEALTHY = auto()  # observed of the group itself: reason enough to roll it back
    UNREAD = auto()  # of the whole cluster, and quick to read
    UNREAD_ZOOKEEPER = auto()  # ZooKeeper itself
    UNREAD_SLOW = auto()  # of the whole cluster; slow, so not read again with the fast values
    UNREAD_STORED = auto()  # metadata of both sides; as slow
    UNREAD_COORDINATORS = auto()  # of one broker; as slow
    UNREAD_GROUPS = auto()  # the progress of the consumer groups; as slow
    GROUPS_STUCK = auto()  # groups that made progress before a restart do not after it
    COORDINATORS_NOT_ASKED = auto()  # a decision waits for nothing but them
    READINESS_NOT_ASKED = auto()  # a decision waits for nothing but what shows whether a rollback is assured
    UNREAD_BROKER = auto()  # of one broker: it did not answer
    UNREAD_CONTROLLER = auto()  # of one controller
    UNREAD_PROCESS = auto()  # of one node, by its host
    UNREAD_FILES = auto()  # of one node, by its host


@dataclass(frozen=True, slots=True)
class Reason:
    """What was observed, under a code that the registry explains (`core.reasons`); the letter of a code is its area."""

    code: str
    text: str  # what was observed
    remedy: str | None = None  # what to do next; None: as the registry has it
    cause: Cause | AuditCause | None = None  # for decisions that must recognise it
    node: str = ""  # such as "broker 1", if alarms and unread hosts of several must be distinguished; not kept in rows
    certain: bool = False  # of what was not read: no later try reads it, until an administrator removes the cause

    def __post_init__(self) -> None:
        """One line, whatever the names and texts of others in it are."""
        object.__setattr__(self, "text", printable(self.text))

    @classmethod
    def of(cls, cause: AuditCause, text: str) -> Reason:
        """A finding of an audit, under the code of its remedy."""
        return cls(CODE_OF[cause], text, cause=cause)

    def __str__(self) -> str:
        move = f"Next: {self.next_step}" if self.next_step else ""
        parts = (f"[{self.code}] {self.text}", move, f"Why it matters: {self.meaning}" if move and self.meaning else self.meaning)
        return " ".join(part for part in parts if part)

    @property
    def meaning(self) -> str:
        """Why it matters."""
        entry = ENTRIES.get(self.code)  # another release may have written a code that this one does not have
        return entry.means if entry else ""

    @property
    def next_step(self) -> str:
        """What to do next; empty if another reason beside it says so."""
        entry = ENTRIES.get(self.code)
        return self.remedy if self.remedy is not None else entry.remedy if entry else f"see {self.code} in the runbook."

    def to_row(self) -> list[str]:
        """As JSON keeps it; `from_row` reads it."""
        return [self.code, self.text, self.cause or ""]

    @classmethod
    def from_row(cls, row: Sequence[str]) -> Reason:
        """The reason that `row` wrote."""
        code, text, cause = row
        return cls(code, text, cause=_CAUSES[cause] if cause else None)


_CAUSES: Mapping[str, Cause | AuditCause] = {cause.value: cause for kind in (Cause, AuditCause) for cause in kind}


def headlines(reasons: Iterable[Reason]) -> tuple[tuple[str, Cause | AuditCause | None], ...]:
    """What reasons are about: a waiting log repeats them if this changes, not for every new figure."""
    return tuple((reason.code, reason.cause) for reason in reasons)


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """What systemd has loaded for a node: `shown` is `systemctl show`, without values that may be secret.

    `starts`: the properties files that it starts Kafka with, if the node's own is not among them. `beside`: how many other brokers and
    controllers run on the machine. `behind`: Kafka is not the unit's main process, but a child of it, such as of a shell.
    """

    shown: Mapping[str, str]
    starts: tuple[str, ...] = ()
    beside: int = 0
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Software:
    """Kafka's release and the path of Java that a node runs, and those on its disk, which its next start loads; empty for what is not known.

    `switches`: what `-D` sets of Java's logins and of its connection to ZooKeeper, secrets hidden: of the command line of the Java that runs,
    else of the service's environment; None if neither is known. `jaas`: the JAAS file that a switch names, without comments and secrets; None
    without one, or if it was not read. `unread`: files of Java's arguments and JAAS files that were not read.
    """

    release: str = ""
    java: str = ""
    disk_release: str = ""
    disk_java: str = ""
    disk_java_version: str = ""
    switches: Mapping[str, str] | None = None
    jaas: str | None = None
    unread: tuple[str, ...] = ()

    @classmethod
    def from_agent(cls, facts: Mapping[str, Any]) -> Software:
        """What an agent says of it, in printable characters."""
        texts: dict[str, Any] = {name: printable(value, "\n\t") for name, value in facts.items() if isinstance(value, str)}
        switches = facts.get("switches")
        shown_switches = None if switches is None else {printable(name): printable(value) for name, value in switches.items()}
        return cls(**texts, switches=shown_switches, unread=tuple(map(printable, facts.get("unread", ()))))


@dataclass(frozen=True, slots=True)
class Process:
    """A node's process as its host reports it; `started_at` in seconds since the epoch.

    `killed_after`: seconds after which the service manager kills it in a stop (infinite: never); None if not known. `at_boot`: the
    service manager starts it when the machine boots; None if there is none, or it is not known. `restart_loop`: the last lines of its
    log, perhaps none, if the service manager starts it again and again; None if it does not. `named`: the properties files among its
    arguments. `prepared`: its unit runs another program before it. `clock_ahead`: the seconds by which its machine's clock surely differs from
    this one's, as near to 0 as the time of the answer allows. `unit`: None without systemd. `software`: None of an older agent.
    """

    state: ProcessState = ProcessState.UNKNOWN
    pid: int | None = None
    started_at: float | None = None
    killed_after: float | None = None
    at_boot: bool | None = None
    restart_loop: str | None = None
    named: tuple[str, ...] = ()
    prepared: bool = False
    clock_ahead: float | None = field(default=None, compare=False)
    unit: ServiceUnit | None = field(default=None, compare=False)
    software: Software | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """One key that differs between two properties files; `before` or `after` is None if the key is absent.

    A value that may not be shown is replaced (`core.node_files.properties.HIDDEN`).
    """

    key: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.key}={self.after}"
        if self.after is None:
            return f"- {self.key}"
        return f"~ {self.key}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """What is on a node's disk; `None` if it could not be read.

    `meta` maps each log directory to the parsed keys of its meta.properties, or to an empty mapping if it is unformatted.
    `free`: the fewest bytes that are free in a directory into which a rollback writes. `edited`: how the properties' keys differ from
    the file that kmigrate installed, or found before the migration; values that may be secrets are hidden. Only a process that has the
    backup compares them (`steps.backup.compare_files`).
    """

    properties: Mapping[str, str] | None = None
    meta: Mapping[str, Mapping[str, str]] | None = None
    has_metadata_log: bool | None = None  # a __cluster_metadata-0 directory: this node has been in a KRaft quorum
    kept_by: str | None = None  # the tool that writes the properties file, according to that file, such as Ansible
    written_at: float | None = None  # of the properties file, in seconds since the epoch, by the machine's clock
    unreadable: tuple[
        str, ...
    ] = ()  # key stores, trust stores and keytabs that its files name and the service's user cannot read
    exposed: tuple[str, ...] = ()  # keytabs that every user of the machine may read
    free: int | None = field(default=None, compare=False)
    sha256: str | None = None  # of the properties file
    edited: tuple[PropertyChange, ...] | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker, as its host, itself, ZooKeeper and its peers report it."""

    id: int
    process: Process = Process()
    mode: BrokerMode | None = None  # None: it did not answer
    in_zookeeper: bool | None = None  # has an ephemeral node under /brokers/ids
    listed_by: frozenset[int] | None = None  # brokers whose metadata name it as alive (KRaft: unfenced)
    controller_id: int | None = None  # the controller in its own Metadata answer
    files: NodeFiles = NodeFiles()
    answered_in: float | None = field(default=None, compare=False)  # seconds that its ApiVersions answer took
    named: bool = True  # by the cluster file; false: only ZooKeeper or a peer lists it, so it was not asked
    rack: str | None = None  # None: it has none, or is not known

    @property
    def is_starting(self) -> bool:
        """Whether it runs, as its host says, but does not answer: it starts, or it hangs."""
        return self.process.state is ProcessState.RUNNING and self.mode is None


@dataclass(frozen=True, slots=True)
class Controller:
    """One KRaft controller; `migration_flag` is ApiVersions tag 3 (zk_migration_ready)."""

    id: int
    process: Process = Process()
    answers: bool = False
    migration_flag: bool | None = None
    files: NodeFiles = NodeFiles()

    @property
    def is_starting(self) -> bool:
        """As a broker's."""
        return self.process.state is ProcessState.RUNNING and not self.answers

    @property
    def is_down(self) -> bool:
        """Whether its host says that it is stopped, and its endpoint does not answer."""
        return self.process.state is ProcessState.STOPPED and not self.answers


@dataclass(frozen=True, slots=True)
class Quorum:
    """DescribeQuorum as the KRaft leader answers it; maps give the log end offset of each replica."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: Mapping[int, int]
    observers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ZkController:
    """The znode /controller; `kraft_epoch` >= 0 and not ephemeral: a KRaft controller owns the cluster."""

    broker_id: int
    kraft_epoch: int
    ephemeral: bool

    @property
    def is_kraft(self) -> bool:
        """Whether the znode names a KRaft controller."""
        return self.kraft_epoch >= 0


@dataclass(frozen=True, slots=True)
class Migration:
    """The znode /migration; `metadata_offset` > 0: the first copy is done. `version` is the znode's data version.

    `created_at`: when a controller created it, in seconds since the epoch by ZooKeeper's clock; 0.0 if it was not read. `age`:
    time since its last write, if known. A write need not move it: a batch that keeps failing rewrites it unchanged.
    """

    kraft_controller_id: int
    kraft_controller_epoch: int
    metadata_offset: int
    metadata_epoch: int
    version: int = 0
    created_at: float = field(default=0.0, compare=False)
    age: Age | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Malformed:
    """A znode is there but its content is not what Kafka writes. `unknown_version`: `content` only says which version it has, which no reader here knows."""

    path: str
    content: str
    unknown_version: bool = False


class LiveMembers(NamedTuple):
    """How many members of a consumer group are registered in ZooKeeper: in ids alone, and in migration/ids too.

    `unregistered_s`: of a group without any: seconds since a client committed there all the same; None: none did lately.
    """

    old: int  # the legacy ZooKeeper consumer, or ours before it migrates
    migrating: int  # ours
    unregistered_s: float | None = None

    def __str__(self) -> str:
        if self.unregistered_s is not None:
            return f"without a registration, committed {self.unregistered_s:.0f} s ago"
        return ", ".join(f"{count} {kind}" for count, kind in ((self.old, "ZooKeeper"), (self.migrating, "migrating")) if count)


class ExpansionStage(StrEnum):
    """How far an expansion of `__consumer_offsets` has changed consumer groups."""

    BEGUN = "begun"  # the groups that move are being stopped and their offsets saved; nothing was deleted
    DELETING = "deleting"  # groups may be deleted; the export alone has their offsets
    DELETED = "deleted"  # the log of `__consumer_offsets` holds nothing of any group that moves
    IMPORTED = "imported"  # every group has its offsets again: the expansion is over


@dataclass(frozen=True, slots=True)
class Expansion:
    """An expansion of `__consumer_offsets` to `new` partitions, as our note in ZooKeeper has it.

    `old`: the counts that brokers may have used before, ascending; mostly one.
    """

    old: tuple[int, ...]
    new: int
    stage: ExpansionStage = ExpansionStage.BEGUN

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: a note of an earlier expansion."""
        return self.stage is ExpansionStage.IMPORTED


@dataclass(frozen=True, slots=True)
class ZkView:
    """One observation of the cluster's ZooKeeper tree, below its chroot."""

    cluster_id: str | None = None
    broker_ids: tuple[int, ...] = ()
    controller: ZkController | Malformed | None = None
    controller_epoch: int | None = None
    migration: Migration | Malformed | None = None
    pending_deletions: tuple[str, ...] = ()
    reassigning: bool = False
    live_groups: tuple[str, ...] = ()  # groups with members under /consumers/<group>/ids, or with commits of unregistered clients
    live_members: Mapping[str, LiveMembers] = field(default_factory=dict)  # theirs
    topic_versions: Mapping[str, int] = field(default_factory=dict)  # data versions of coordinator topics; 0: as it was created
    registered: frozenset[int] = frozenset()  # by our note: brokers that a roll has moved into migration mode
    unflagged: frozenset[int] = frozenset()  # by our note: controllers whose flag a finalization takes, or has taken
    rolled_back: Mapping[int, BrokerMode] = field(default_factory=dict)  # brokers that were rolled back alone: into which mode
    expansion: Expansion | None = None  # by our note: the last expansion of __consumer_offsets
    partition_counts: Mapping[str, int] | None = (
        None  # by our note: of the coordinator topics, as brokers use them; None: no note
    )


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition as the brokers' metadata show it; leader -1: none."""

    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def name(self) -> str:
        """`topic-index`."""
        return f"{self.topic}-{self.index}"

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is missing from the ISR."""
        return set(self.isr) != set(self.replicas)


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition as one side stores it; `isr` is advisory, the two sides may be a moment apart.

    `controller_epoch` is that of ZooKeeper's state znode: -1 if there is none, None if it holds none.
    """

    replicas: tuple[int, ...]
    leader: int
    isr: tuple[int, ...] = ()
    controller_epoch: int | None = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic as one side stores it; `topic_id` in Kafka's base64 form, `configs` are dynamic overrides only."""

    name: str
    topic_id: str | None
    partitions: Mapping[int, PartitionMetadata]
    configs: Mapping[str, str] = field(default_factory=dict)


class StoredKind(StrEnum):
    """The metadata beside topics that ZooKeeper and KRaft both store."""

    BROKER_SETTINGS = "broker settings"  # dynamic ones, of one broker or of all
    QUOTAS = "quotas"
    CREDENTIALS = "SCRAM credentials"
    ACLS = "ACLs"
    TOKENS = "delegation tokens"
    PRODUCER_IDS = "producer-id blocks"


#: Entity -> setting -> value. No value is a secret: readers leave those out.
Entities = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Stored:
    """One kind of metadata as both sides store it.

    `unreported`: entity -> why no node can report KRaft's side of it; `EVERY` stands for all entities. These are not compared.
    """

    EVERY: ClassVar = ""
    zookeeper: Entities
    kraft: Entities = field(default_factory=dict)
    unreported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inventory:
    """All metadata as ZooKeeper stored it before KRaft took the cluster over; partitions have replicas only.

    `at`: when it was read, in seconds since the epoch. `late`: KRaft may have taken the cluster over before that.
    """

    at: float
    topics: Mapping[str, TopicMetadata]
    stored: Mapping[StoredKind, Entities]
    late: bool = False


@dataclass(frozen=True, slots=True)
class CoordinatorFacts:
    """How brokers find coordinators.

    `counts`: topic -> broker -> the partition counts that explain its answers; none if the topic does not exist. A broker that did
    not answer is missing. `groups`: the consumer groups that brokers list; a broker that did not answer may have more.
    """

    counts: Mapping[str, Mapping[int, frozenset[int]]]
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """One server of the ensemble, as its `srvr` command reports it.

    `version`, `mode`: None if it does not answer that. `mode` is such as leader, follower or standalone; a server without a quorum
    has none. `certificate_end`: when the first of its certificate's chain ends, in seconds since the epoch; infinite without TLS, or if it did not answer.
    """

    address: str
    version: str | None = None
    mode: str | None = None
    certificate_end: float = inf


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """What this process found in the backup. `originals`: the SHA-256 of each broker's original, by broker.

    `lost`: why brokers could not be rolled back, of an original that is missing, altered or cannot be rendered from. `unwritable`:
    why the handover could not save what it deletes; both are empty if all is well.
    """

    originals: Mapping[int, str] = field(default_factory=dict)
    lost: tuple[Reason, ...] = ()
    unwritable: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class ProduceLatency:
    """How the records of one partition are acknowledged: `rate` records a second; 95 % within `p95` seconds of being sent."""

    rate: float
    p95: float


@dataclass(frozen=True, slots=True)
class NoProbe:
    """The cluster file has no probe: nothing is measured, and nothing is waited for."""


@dataclass(frozen=True, slots=True)
class ProbeFigures:
    """What the probe has measured of its own records, by partition. `age`: seconds since it wrote that; infinite: nothing can be read.

    `before`: of its first seconds, before any restart of its run; None while they are not over. `now`: of its last seconds.
    """

    age: float
    before: Mapping[str, ProduceLatency] | None = None
    now: Mapping[str, ProduceLatency] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """A committed offset with all that OffsetFetch reports of it; `leader_epoch` -1: none was committed."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class HostedGroup:
    """A consumer group as one broker has it that takes itself for its coordinator. `state` as Kafka names it; Dead: it has none.

    `unstable`: an open transaction holds commits of it back.
    """

    state: str
    members: int = 0
    offsets: Mapping[TopicPartition, FetchedOffset] = field(default_factory=dict)
    unstable: bool = False

    @property
    def exists(self) -> bool:
        """Whether the broker stores anything of the group."""
        return self.state != "Dead" or bool(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterView:
    """One frozen observation of everything; nothing in it is newer than `taken_at` or older than `taken_at - took`.

    It equals only itself, so that what follows from it can be kept by it (`phase.position_of`).
    """

    taken_at: float
    took: float = 0.0
    name: str = "<cluster>"  # the cluster's in its file, for texts and DAG ids
    kafka_cluster_id: str | None = None
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controllers: Mapping[int, Controller] = field(default_factory=dict)
    quorum: Quorum | None = None
    zk: ZkView | None = None
    partitions: tuple[Partition, ...] | None = None
    min_insync: Mapping[str, int] | None = None  # min.insync.replicas in force, per topic
    coordinators: CoordinatorFacts | None = None
    hosted: Mapping[int, Mapping[str, HostedGroup]] | None = None  # broker -> its groups; a broker that did not answer is missing
    metadata_version: str | None = None  # the controllers' finalized metadata.version, such as "3.9-IV0"
    client_metrics: tuple[str, ...] | None = None  # names of client-metrics subscriptions
    topics: tuple[Mapping[str, TopicMetadata], Mapping[str, TopicMetadata]] | None = None  # (ZooKeeper's, the brokers')
    stored: Mapping[StoredKind, Stored] | None = None  # without the kinds of which a side was not read
    state_epoch: int | None = None  # highest controller_epoch in a partition's state znode; -1: no partition has one
    moving: tuple[str, ...] | None = None  # partitions that are being reassigned, such as "orders-3"
    groups: Mapping[str, GroupSeen] | None = None  # those that were requested; a side that was not read is None
    ensemble: tuple[ZooKeeperServer, ...] | None = None
    backup: BackupFacts | None = None  # None: this process did not read it
    group_progress: GroupSweep | None = None
    probe: ProbeFigures | NoProbe | None = None  # None: it was not asked for
    unknowns: tuple[Reason, ...] = ()

    @property
    def migration(self) -> Migration | None:
        """/migration as a controller writes it; None if it is absent, malformed, or was not read."""
        znode = self.zk.migration if self.zk else None
        return znode if isinstance(znode, Migration) else None

    def broker(self, number: int) -> Broker:
        """One broker; if it was not listed, one of which nothing is known."""
        return self.brokers.get(number) or Broker(number)

    def controller(self, number: int) -> Controller:
        """One controller; if it was not listed, one of which nothing is known."""
        return self.controllers.get(number) or Controller(number)

    def running_brokers(self) -> Iterator[Broker]:
        """Brokers that answered."""
        return (broker for broker in self.brokers.values() if broker.mode is not None)

    def in_mode(self, *modes: BrokerMode | None) -> list[int]:
        """Ids of the brokers in these modes, ascending; None: those that did not answer."""
        return sorted(broker.id for broker in self.brokers.values() if broker.mode in modes)

    def unnamed_brokers(self) -> list[int]:
        """Ids of the brokers that the cluster file does not name, ascending."""
        return sorted(broker.id for broker in self.brokers.values() if not broker.named)

    def unresponsive_controllers(self) -> list[int]:
        """Ids of the controllers that did not answer, ascending."""
        return sorted(controller.id for controller in self.controllers.values() if not controller.answers)

    def has_answered(self, broker: int) -> bool:
        """Whether a broker was listed, and answered."""
        return broker in self.brokers and self.brokers[broker].mode is not None

    def missing_isr(self, broker: int) -> tuple[Partition, ...]:
        """Partitions of this broker whose ISR misses it, or that have no leader; none if the partitions were not read."""
        return tuple(p for p in self.partitions or () if broker in p.replicas and (broker not in p.isr or p.leader < 0))

    def modes(self) -> dict[int, BrokerMode | None]:
        """Broker id -> mode; None for a broker that did not answer."""
        return {broker.id: broker.mode for broker in self.brokers.values()}


def could_not_read(what: str) -> Reason:
    """G00: `what` was not read."""
    return Reason("G00", f"Could not read {what}.", cause=Cause.NOT_READ)


DEFAULT = "<default>"
"""The entity name of settings that all brokers share."""


@dataclass(frozen=True, slots=True)
class LogDir:
    """One of a broker's log directories; `error` is Kafka's name of its fault, empty for a healthy one.

    `usable_bytes`: the room on its disk; None before Kafka 3.3 (KIP-827).
    """

    path: str
    error: str = ""
    usable_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionIds:
    """The partitions on a broker's disks, compared with ZooKeeper's topics: how many, and what differs.

    `found`: what -> (how many, some of them: directory and the id on disk). What: `other` (another id), `missing` (no id on disk), `stray`
    (no such topic), `unassigned` (other brokers have this partition), `unidentified` (one of these two, and no id on disk), `put_away` and
    `deleted` (Kafka renamed them to `*-stray` and `*-delete`), or the agent's code why the partition's file was not read. `sizes`: what ->
    bytes, at least.
    """

    read: int = 0
    found: Mapping[str, tuple[int, tuple[tuple[str, str], ...]]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a running broker read when it started: its file's keys, references resolved, and its command line's additions.

    A None value: brokers do not report it, because it may be a secret. `defaults` are Kafka's own, of the keys that have one.
    """

    values: Mapping[str, str | None] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ZkAcl:
    """One access rule as ZooKeeper has it; `pattern` is LITERAL or PREFIXED."""

    resource: str
    name: str
    pattern: str
    principal: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return f"{self.permission} {self.operation} for {self.principal} on {self.pattern} {self.resource}:{self.name}"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's znode: the time that the broker wrote into it by its own clock, and when ZooKeeper stored it; seconds."""

    broker_time: float
    stored_at: float


@dataclass(frozen=True, slots=True)
class OthersRight:
    """Another identity than kmigrate's may write one of its znodes. `who`: scheme and name of each identity; empty: any client."""

    path: str
    who: str = ""

    def __str__(self) -> str:
        return f"{self.who or 'any client of ZooKeeper'} may write {self.path}"


@dataclass(frozen=True, slots=True)
class ZooKeeperTree:
    """What a `ZkView` does not have. Times are seconds since the epoch, by ZooKeeper's clock."""

    broker_settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # id or <default> -> the dynamic keys' names
    scram_users: tuple[str, ...] = ()
    tokens: int = 0
    acls: tuple[ZkAcl, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    has_feature: bool = True
    generated_ids: int = 0  # how many broker ids ZooKeeper has given out (the version of /brokers/seqid)
    changed: tuple[tuple[str, float], ...] = ()  # (what, when) of the last notifications of changed settings and ACLs
    registrations: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    guarded: tuple[str, ...] = ()  # schemes of the znodes' ACLs, such as "sasl"; none: any client may write
    others: OthersRight | None = None  # who else may write kmigrate's own znode
    latest: float = 0.0  # the newest time that ZooKeeper gave to anything read here
    cmak: bool | None = False  # whether CMAK keeps its state in this ensemble
    storm_spouts: tuple[str, ...] | None = ()  # paths of Storm spouts that keep their offsets in this ensemble; None: not known


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a node shows of itself at a TLS handshake. `end`: when the first of its chain ends, in seconds since the epoch; infinite without TLS.

    `name`: its subject as Java writes it (RFC 2253), which is its name as a client of others; None without TLS, or if a part of it can be
    written in several ways.
    """

    end: float = inf
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterEnvironment:
    """All of it; maps have an entry for each broker that was asked. `now`: this machine's clock when it was read."""

    releases: Mapping[int, str | None] = field(default_factory=dict)  # "3.9": the software's own protocol version
    log_dirs: Mapping[int, tuple[LogDir, ...] | None] = field(default_factory=dict)
    moving: tuple[str, ...] | None = None  # partitions that are being reassigned, as the controller lists them
    tree: ZooKeeperTree | None = None
    servers: tuple[ZooKeeperServer, ...] = ()
    unread: tuple[str, ...] = ()  # why something was not reported
    now: float = 0.0
    taken: Mapping[int, Taken | None] = field(default_factory=dict)
    one_machine: bool = False  # every node and ZooKeeper run on this machine: there is one clock
    certificates: Mapping[int, Certificate | None] = field(default_factory=dict)  # of each broker's listener; None: not read
    partition_ids: Mapping[int, PartitionIds | None] = field(default_factory=dict)  # of each broker's disks
    addresses: Mapping[int, tuple[str, ...] | None] = field(default_factory=dict)  # of each controller's host, on its own machine


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """How kmigrate's own connections are protected; each is named by its section of the cluster file.

    `unverified`: TLS that accepts any host name; `readable`: a password without TLS; `zookeeper`: TLS or SASL towards ZooKeeper;
    `anonymous`: ZooKeeper does not know who connects, so that any client may write what kmigrate writes there. `refused`: why webhooks of
    consumer groups cannot be called. `librdkafka_without_kerberos`: the connection to the brokers is GSSAPI, and the librdkafka of this
    Python was built without it. `quorum_mechanism`: kmigrate's SASL mechanism at the controllers' listener, None without SASL.
    `ends`: when its certificates and fixed tokens end, such as `certificate of kafka`, in seconds since the epoch; without what was not read.
    """

    unverified: frozenset[str] = frozenset()
    readable: frozenset[str] = frozenset()
    zookeeper: tuple[str, ...] = ()
    anonymous: bool = False
    refused: tuple[Reason, ...] = ()
    librdkafka_without_kerberos: bool = False
    quorum_mechanism: str | None = None
    ends: Mapping[str, float] = field(default_factory=dict)
