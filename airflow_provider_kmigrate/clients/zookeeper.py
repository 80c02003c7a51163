"""Kafka's tree in ZooKeeper: read in few round trips, written only by fenced transactions on an allow-list of paths.

Every path is below the chroot of the settings, which is never created: a wrong chroot is a wrong cluster. Raises what
`zookeeper_session` maps kazoo's errors to; `WrongCluster` (Z01) if the chroot does not exist, no Kafka cluster in it, or its id is
unreadable.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol, Self, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from airflow_provider_kmigrate.clients import znodes, zookeeper_environment
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.znode_writes import (
    CONSUMERS,
    NOTES,
    REGISTERED,
    UNFLAGGED,
    Create,
    Delete,
    Operation,
    Set,
    check_allowed,
    outdated,
)
from airflow_provider_kmigrate.clients.zookeeper_session import Kind, Read, Session, error_for
from airflow_provider_kmigrate.core.model import (
    LeaderTime,
    LiveMembers,
    Malformed,
    Migration,
    PartitionMetadata,
    Reason,
    Span,
    TopicMetadata,
    Written,
    ZkView,
)
from airflow_provider_kmigrate.core.preflight.environment import ZooKeeperServer, ZooKeeperTree
from airflow_provider_kmigrate.exceptions import Failed, Fenced, WrongCluster

Parsed = TypeVar("Parsed")


class Znode(NamedTuple):
    """A znode with parts of its stat: version of the data, zxid and time (seconds since the epoch) of their last change."""

    data: bytes
    version: int
    zxid: int
    changed_at: float


class Holding(Protocol):
    """Proof of owning the cluster, as `fence.Fence` gives it: `path` had version `token` when the fence was taken."""

    @property
    def path(self) -> str:
        """The znode whose version identifies the newest owner."""

    @property
    def token(self) -> int:
        """Its version when we became the owner."""


class ZooKeeper:
    """One session; connects at the first call and again when needed. Thread-safe."""

    def __init__(self, settings: ZooKeeperSettings, read_timeout: float = 5.0) -> None:
        self._settings = settings
        self._session = Session(settings, read_timeout)
        self._time: LeaderTime | None = None  # as of our last write

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the session; a later call opens a new one."""
        self._session.close()

    def view(self, *, groups: bool = False) -> ZkView:
        """One instant of the tree in one round trip; with `groups` a second one, a moment later."""
        asked = time.monotonic()
        root, identity, ids, controller, epoch, migration, deletions, moves, offsets, *notes = self._session.read(
            "view",
            Read(Kind.DATA, "/"),
            Read(Kind.DATA, "/cluster/id"),
            Read(Kind.CHILDREN, "/brokers/ids"),
            Read(Kind.DATA, "/controller"),
            Read(Kind.DATA, "/controller_epoch"),
            Read(Kind.DATA, "/migration"),
            Read(Kind.CHILDREN, "/admin/delete_topics"),
            Read(Kind.DATA, "/admin/reassign_partitions"),
            Read(Kind.DATA, "/brokers/topics/__consumer_offsets"),
            *(Read(Kind.DATA, path) for path in NOTES),
        )
        read = Span(asked, time.monotonic())
        back, known, unflagged = notes
        living = self._live_members() if groups else {}
        return ZkView(
            cluster_id=self._identity(root, identity),
            broker_ids=_broker_ids(ids),
            controller=controller and znodes.controller(_data(controller), ephemeral=bool(controller[1].ephemeralOwner)),
            controller_epoch=znodes.controller_epoch(_data(epoch)) if epoch else None,
            migration=migration and self._migration(migration, read),
            pending_deletions=tuple(sorted(deletions or ())),
            reassigning=moves is not None,
            live_groups=tuple(living),
            live_members=living,
            offsets_topic_version=offsets[1].version if offsets else None,
            rolled_back=znodes.rolled_back(_data(back)) if back else {},
            registered=znodes.node_ids(REGISTERED, _data(known)) if known else frozenset(),
            unflagged=znodes.node_ids(UNFLAGGED, _data(unflagged)) if unflagged else frozenset(),
        )

    def _migration(self, found: tuple[bytes | None, ZnodeStat], read: Span) -> Migration | Malformed:
        stat = found[1]
        age = self._time.age(_written(stat), read) if self._time else None
        return znodes.migration(_data(found), stat.version, stat.created, age)

    def cluster_id(self) -> str:
        """The cluster id that its first broker chose."""
        return self._identity(*self._session.read("cluster id", Read(Kind.DATA, "/"), Read(Kind.DATA, "/cluster/id")))

    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic with its overrides and each partition's replicas, leader (-1: none, or never elected) and ISR."""
        (names,) = self._session.read("topics", Read(Kind.CHILDREN, "/brokers/topics"))
        topics = {name: _sound(znodes.topic(name, data)) for name, data in self.each("/brokers/topics", names or ())}
        overrides = {
            name: _sound(znodes.configs(f"/config/topics/{name}", data)) for name, data in self.each("/config/topics", topics)
        }
        states = self._states(topics.values())
        return {
            name: replace(topic, partitions=states[name], configs=overrides.get(name, {}))
            for name, topic in sorted(topics.items())
        }

    def state_paths(self) -> list[str]:
        """The paths of all partition states, existing or not."""
        (names,) = self._session.read("topics", Read(Kind.CHILDREN, "/brokers/topics"))
        topics = [_sound(znodes.topic(name, data)) for name, data in self.each("/brokers/topics", names or ())]
        return [f"/brokers/topics/{topic.name}/partitions/{index}/state" for topic in topics for index in topic.partitions]

    def state_epoch(self) -> int:
        """The highest controller_epoch in any partition's state; -1 if no partition has a state yet."""
        states = self._session.stream("partition states", Kind.DATA, self.state_paths())
        return max((_sound(znodes.state_epoch(path, _data(found))) for path, found in states), default=-1)

    def surroundings(self) -> ZooKeeperTree:
        """Read what preflight needs beside a view."""
        return zookeeper_environment.tree(self._session)

    def servers(self) -> tuple[ZooKeeperServer, ...]:
        """The servers of the connection, each asked for its version on a connection of its own."""
        return zookeeper_environment.servers(self._settings)

    def leaderless(self) -> list[str]:
        """The names of partitions without a leader."""
        return [
            f"{topic.name}-{index}"
            for topic in self.topics().values()
            for index, partition in sorted(topic.partitions.items())
            if partition.leader < 0
        ]

    def tree(self, path: str = "/") -> Iterator[tuple[str, bytes | None]]:
        """Every znode below `path` and itself, parents first; znodes that vanish meanwhile are left out. For backups."""
        level = [path]
        while level:
            found = [(name, data) for name, (data, _) in self._session.stream("tree", Kind.DATA, level)]
            yield from found
            families = self._session.stream("tree", Kind.CHILDREN, (name for name, _ in found))
            level = [f"{name.rstrip('/')}/{child}" for name, children in families for child in sorted(children)]

    def read(self, path: str) -> tuple[bytes, int] | None:
        """A znode's data and version; None if it is absent."""
        (found,) = self._session.read(path, Read(Kind.DATA, path))
        return (_data(found), found[1].version) if found else None

    def children(self, path: str) -> list[str]:
        """The names below a znode, sorted; none if it is absent."""
        (names,) = self._session.read(path, Read(Kind.CHILDREN, path))
        return sorted(names or ())

    def each(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Name and data of those children of a folder that exist."""
        paths = {f"{folder}/{name}": name for name in names}
        return ((paths[path], _data(found)) for path, found in self._session.stream(folder, Kind.DATA, paths))

    def nodes(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode]]:
        """Each of these znodes that exists, in order."""
        for path, found in self._session.stream("znodes", Kind.DATA, paths):
            stat = found[1]
            yield path, Znode(_data(found), stat.version, stat.mzxid, stat.mtime / 1000)

    def families(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Each of these znodes that exists, with the names below it, sorted."""
        return ((path, sorted(names)) for path, names in self._session.stream("children", Kind.CHILDREN, paths))

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        """Commit all operations or none, and none unless the fence is still held; returns the new version of each znode set.

        Kafka's znodes, those of consumer groups too, need a fence and a version, or to be new; without a fence only our own root
        may be written. Raises `Forbidden` before anything is sent, `Fenced`, or `Changed` if a znode is not as it was. After
        `Unreachable` and `TimedOut` the result is unknown: read again.
        """
        for operation in operations:
            check_allowed(operation, held=holding is not None)
        transaction = self._session.client().transaction()
        paths = [operation.path for operation in operations]
        if holding is not None:
            transaction.check(holding.path, holding.token)
            paths.insert(0, holding.path)
        for operation in operations:
            self._add(transaction, operation)
        asked = time.monotonic()
        results = self._session.result("commit", transaction.commit_async())
        made = Span(asked, time.monotonic())
        self._check_results(paths, results, fenced=holding is not None)
        for stat in results:
            if isinstance(stat, ZnodeStat):
                self._time = LeaderTime(_written(stat), made)
        return [getattr(result, "version", None) for result in results[-len(operations) :]]

    def _identity(self, root: object, found: Any) -> str:
        if root is None:
            self._refuse("the chroot does not exist")
        if found is None:
            self._refuse("/cluster/id does not exist")
        identity = znodes.cluster_id(_data(found))
        if isinstance(identity, Malformed):
            self._refuse(f"/cluster/id is {identity.content!r}")
        return identity

    def _refuse(self, text: str) -> NoReturn:
        raise WrongCluster.because(Reason("Z01", f"{self._session.where}: {text}."))

    def _live_members(self) -> dict[str, LiveMembers]:
        """migration/ids first: a member that joins meanwhile looks like one that cannot migrate."""
        (groups,) = self._session.read("groups", Read(Kind.CHILDREN, CONSUMERS))
        names = sorted(groups or ())
        migrating = dict(self.families(f"{CONSUMERS}/{group}/migration/ids" for group in names))
        ids = dict(self.families(f"{CONSUMERS}/{group}/ids" for group in names))
        found = {}
        for group in names:
            able = set(migrating.get(f"{CONSUMERS}/{group}/migration/ids", ()))
            if there := ids.get(f"{CONSUMERS}/{group}/ids"):
                found[group] = LiveMembers(len(set(there) - able), len(able.intersection(there)))
        return found

    def _states(self, topics: Iterable[TopicMetadata]) -> Mapping[str, Mapping[int, PartitionMetadata]]:
        topics = tuple(topics)
        paths = {
            f"/brokers/topics/{topic.name}/partitions/{index}/state": (topic.name, index, partition)
            for topic in topics
            for index, partition in topic.partitions.items()
        }
        states: dict[str, dict[int, PartitionMetadata]] = {topic.name: dict(topic.partitions) for topic in topics}
        for path, found in self._session.stream("partition states", Kind.DATA, paths):
            name, index, partition = paths[path]
            leader, isr, epoch = _sound(znodes.partition_state(path, _data(found)))
            states[name][index] = replace(partition, leader=leader, isr=isr, controller_epoch=epoch)
        return states

    def _add(self, transaction: TransactionRequest, operation: Operation) -> None:
        match operation:
            case Set(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path, version):
                transaction.delete(path, version)
            case Create(path, data, ephemeral, like):
                transaction.create(path, data, acl=self._acl_of(like) if like else self._acl(path), ephemeral=ephemeral)

    def _acl_of(self, path: str) -> Any:
        acls, _ = self._session.result(f"ACL of {path}", self._session.client().get_acls_async(path))
        return acls

    def _acl(self, path: str) -> Any:
        """Open below a group: consumers write there with their own identities, or none, and a closed znode would stop them.

        Our notes of nodes are readable by all, since every view has them; they hold ids and modes.
        """
        if path in NOTES:
            return [*self._session.acl, *READ_ACL_UNSAFE]
        return OPEN_ACL_UNSAFE if _below(path, CONSUMERS) else self._session.acl

    def _check_results(self, paths: Sequence[str], results: Sequence[Any], *, fenced: bool) -> None:
        for position, (path, result) in enumerate(zip(paths, results, strict=True)):
            if not isinstance(result, Exception) or isinstance(result, RolledBackError | RuntimeInconsistency):
                continue
            if fenced and position == 0:
                text = f"{self._session.where}: another run has taken the cluster over ({path} has a newer version)"
                raise Fenced.because(outdated(text))
            raise error_for(result, f"{self._session.where}: {path}, nothing was changed")


def _data(found: Any) -> bytes:
    """The data of a (data, stat) pair; kazoo gives None for a znode with null data."""
    return found[0] or b""


def _written(stat: ZnodeStat) -> Written:
    return Written(stat.mtime / 1000, stat.mzxid)


def _broker_ids(names: Sequence[str] | None) -> tuple[int, ...]:
    return tuple(sorted(int(name) for name in names or () if name.isdecimal()))


def _sound(parsed: Parsed | Malformed) -> Parsed:
    if isinstance(parsed, Malformed):
        raise Failed(f"{parsed.path} does not have Kafka's format: {parsed.content!r}")
    return parsed


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
