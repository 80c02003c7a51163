"""What preflight asks beside a view, as frozen values: what brokers tell of their software and disks, and what else lies in ZooKeeper.

None, everywhere: it was not told. Of settings in ZooKeeper no value is kept: passwords are in the same places. Brokers tell no secret of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_kmigrate.core.model import Malformed

DEFAULT = "<default>"
"""The entity name of settings that all brokers share."""


@dataclass(frozen=True, slots=True)
class LogDir:
    """One of a broker's log directories; `error` is Kafka's name of what is wrong with it, empty for a healthy one."""

    path: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a running broker read when it started: the keys of its file, references resolved, and what was added on its command line.

    None stands for a value that brokers do not tell because it may be a secret. `defaults` are Kafka's own, of the keys that have one.
    """

    values: Mapping[str, str | None] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Acl:
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
class Registration:
    """A broker's znode: the time that the broker wrote into it by its own clock, and when ZooKeeper says it was made; seconds."""

    told: float
    made: float


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """One server of the ensemble as its `srvr` command tells; `version` is None where it does not answer it."""

    address: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class ZooKeeperTree:
    """What a `ZkView` does not have. Times are seconds since the epoch, by ZooKeeper's clock."""

    broker_settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # id or <default> -> the dynamic keys' names
    scram_users: tuple[str, ...] = ()
    tokens: int = 0
    acls: tuple[Acl, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    has_feature: bool = True
    generated_ids: int = 0  # how many broker ids ZooKeeper has given out (the version of /brokers/seqid)
    changed: tuple[tuple[str, float], ...] = ()  # (what, when) of the last notifications of changed settings and ACLs
    registrations: Mapping[int, Registration] = field(default_factory=dict)
    guarded: tuple[str, ...] = ()  # schemes by which znodes are guarded, such as "sasl"; none: anybody may write
    latest: float = 0.0  # the newest time that ZooKeeper gave to anything read here
    cmak: bool | None = False  # whether CMAK keeps its state in this ensemble


@dataclass(frozen=True, slots=True)
class ClusterEnvironment:
    """All of it; maps have an entry for each broker that was asked. `now`: this machine's clock when it was read."""

    releases: Mapping[int, str | None] = field(default_factory=dict)  # "3.9": the software's own protocol version
    log_dirs: Mapping[int, tuple[LogDir, ...] | None] = field(default_factory=dict)
    moving: tuple[str, ...] | None = None  # partitions that are being reassigned, as the controller lists them
    tree: ZooKeeperTree | None = None
    servers: tuple[ZooKeeperServer, ...] = ()
    unread: tuple[str, ...] = ()  # why something was not told
    now: float = 0.0
    taken: Mapping[int, Taken | None] = field(default_factory=dict)
    one_machine: bool = False  # every node and ZooKeeper run on this machine: there is one clock
