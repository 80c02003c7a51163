"""What preflight reads beside a view, as frozen values: brokers' software and disks, and more of ZooKeeper.

None always means: not reported. Of settings in ZooKeeper no value is kept, because passwords are in the same places. Brokers do
not report their own secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_kmigrate.core.model import Malformed

DEFAULT = "<default>"
"""The entity name of settings that all brokers share."""


@dataclass(frozen=True, slots=True)
class LogDir:
    """One of a broker's log directories; `error` is Kafka's name of its fault, empty for a healthy one."""

    path: str
    error: str = ""


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
    """A broker's znode: the time that the broker wrote into it by its own clock, and when ZooKeeper created it; seconds."""

    broker_time: float
    created_at: float


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """One server of the ensemble, as its `srvr` command reports it; `version` is None if it does not answer that."""

    address: str
    version: str | None = None


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
    unread: tuple[str, ...] = ()  # why something was not reported
    now: float = 0.0
    taken: Mapping[int, Taken | None] = field(default_factory=dict)
    one_machine: bool = False  # every node and ZooKeeper run on this machine: there is one clock
