"""A migrating consumer's ZooKeeper session: bounded calls, watches that only say "changed", and a group's znodes.

As in `clients.zookeeper_session` every answer is awaited for a bounded time, kazoo's threads only put into a queue, and closing
does not wait for a hung server. Unlike there, the session is the member's life: it is never replaced without the member; kazoo
reconnects for as long as the consumer lives.

A group's znodes as a member uses them: its registration, the view of the group, owners and offsets. Every call is one bounded I/O
that may be repeated. Each raises ours if ZooKeeper does not answer; its effect is then unknown until the next call, since an
ephemeral znode shows whose session made it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper_sasl import find_own_error, guard_login
from airflow_provider_kmigrate.clients.zookeeper_session import access_arguments, close_client, error_for
from airflow_provider_kmigrate.core.cluster_state.model import Malformed
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember, foreign_partitions, topics_of
from airflow_provider_kmigrate.core.member.messages import GroupView
from airflow_provider_kmigrate.core.member.registration import (
    GroupPaths,
    MemberProgress,
    Mode,
    Registration,
    Unreadable,
    encode_offset,
    is_number,
    read_offset,
    read_registration,
    write_progress,
    write_registration,
)
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, TimedOut, Unreachable

_log = logging.getLogger(__name__)
ANSWER_S: Final = 4.0
_NEGOTIATED: Final = "Session created"  # kazoo keeps the timeout that the server granted only in this log line

StateChanged = Callable[[bool], None]  # true: the session is lost; false: only the connection
Watched = Callable[[str], None]


class GroupZnode(NamedTuple):
    """A znode's data and version. `session`: the session that made it; 0 for a persistent one."""

    data: bytes
    version: int
    session: int
    changed: int


class _Log(logging.Logger):
    """Kazoo's logger: keeps the granted timeout, in seconds, passes on why it cannot connect, and drops everything else."""

    def __init__(self, timeout: float) -> None:
        super().__init__("kazoo", logging.CRITICAL)
        self.timeout = timeout
        self.cause: KMigrateError | None = None  # why the last login could not be made, if it could not

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ARG002  # as its base has it
        """Note the negotiated session timeout, in seconds, that kazoo only logs."""
        if str(msg).startswith(_NEGOTIATED):
            self.timeout = float(str(args[2])) / 1000.0

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ARG002  # as its base has it
        """Log it as information: a lost connection is expected here, and handled."""
        self.cause = find_own_error(args)
        _log.info(str(msg), *args)


class GroupSession:
    """A ZooKeeper session, thread-safe. `changed` and `watched` are called in kazoo's threads and must only put into a queue."""

    def __init__(self, settings: ZooKeeperSettings, changed: StateChanged, watched: Watched) -> None:
        self.where = f"ZooKeeper {settings.hosts}{settings.chroot}"
        self._log = _Log(settings.session_timeout)
        self._changed = changed
        self._watched = watched
        self._refused = False
        self._client = KazooClient(
            f"{settings.hosts}{settings.chroot}",
            timeout=settings.session_timeout,
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 1.5, "max_delay": 1.0},
            logger=self._log,
            **access_arguments(settings),
        )
        guard_login(self._client)
        self._acl = CREATOR_ALL_ACL if settings.set_acl else OPEN_ACL_UNSAFE  # the legacy consumer's are open
        self._client.add_listener(self._on_state)

    def start(self) -> None:
        """Does not wait."""
        self._client.start_async()

    def close(self) -> None:
        """End the session, and with it all our ephemeral znodes."""
        close_client(self._client)

    def _on_state(self, state: str) -> None:
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self._refused = True
            why = f" ({self._log.cause})" if self._log.cause else ""
            _log.error("%s refuses this consumer's identity%s: it delivers nothing and does not retry", self.where, why)
        if state != KazooState.CONNECTED:
            self._changed(state == KazooState.LOST)

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.path:  # without: the connection broke, and the resuming member asks again
            self._watched(event.path)

    @property
    def connected(self) -> bool:
        """True while the connection works; the session outlives a short break."""
        return bool(self._client.connected)

    @property
    def session(self) -> int | None:
        """The id of the present session; None before the first one."""
        client_id = self._client.client_id
        return int(client_id[0]) if client_id and client_id[0] else None

    def confirm_session(self, answered: Callable[[int, float, float], None]) -> None:
        """Sync with ZooKeeper's leader, then report to `answered`: the session, when it was asked, and the session's timeout.

        Only the leader keeps sessions alive. A follower that has lost it answers reads for seconds more; a `sync` goes through
        it.
        """
        asked_at, session = time.monotonic(), self.session

        def report_if_synced(result: Any) -> None:
            if result.successful() and session is not None and session == self.session:
                answered(session, asked_at, self._log.timeout)

        if self.connected:
            self._client.sync_async("/").rawlink(report_if_synced)

    def call(self, what: str, act: Callable[[KazooClient], Any]) -> Any:
        """The answer to one asynchronous request.

        Errors about the znode pass (absent, exists, other version); kazoo's others become ours.
        """
        if self._refused:
            raise AuthenticationFailed(f"{self.where}: {what}: our identity is refused")
        if not self.connected:
            raise Unreachable(f"{self.where}: {what}: not connected")
        try:
            return act(self._client).get(timeout=ANSWER_S)
        except KazooTimeoutError as error:
            raise TimedOut(f"{self.where}: {what}: no answer within {ANSWER_S:g} s") from error
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except KazooException as error:
            raise error_for(error, f"{self.where}: {what}") from error

    def sync(self) -> None:
        """Make the server catch up with the leader, so that later reads are current."""
        self.call("sync", lambda client: client.sync_async("/"))

    def get(self, path: str, *, watch: bool = False) -> GroupZnode | None:
        """Read a znode; None if it is absent, and then the watch is for its creation."""
        watcher = self._on_watch if watch else None
        for _ in range(3):
            with contextlib.suppress(NoNodeError):
                return _to_group_znode(self.call(f"read {path}", lambda client: client.get_async(path, watch=watcher)))
            if not watch or self.call(f"watch {path}", lambda client: client.exists_async(path, watch=watcher)) is None:
                return None
        raise Unreachable(f"{self.where}: {path} keeps appearing and disappearing")

    def get_all(self, paths: Mapping[str, str], *, watch: bool = False) -> dict[str, GroupZnode]:
        """Name -> znode, of those that exist; all asked at once."""
        watcher = self._on_watch if watch else None
        sent = {name: self._client.get_async(path, watch=watcher) for name, path in paths.items()}
        existing = {}
        for name, result in sent.items():
            with contextlib.suppress(NoNodeError):
                existing[name] = _to_group_znode(self.call(f"read {paths[name]}", partial(_return_sent, result)))
        return existing

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        """The children, none of an absent znode; then there is no watch either."""
        watcher = self._on_watch if watch else None
        try:
            names = self.call(f"list {path}", lambda client: client.get_children_async(path, watch=watcher))
        except NoNodeError:
            return []
        return [str(name) for name in names]

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        """Create it, with its parents; False if it exists already."""
        try:
            self.call(f"create {path}", lambda client: client.create_async(path, data, self._acl, ephemeral=ephemeral))
        except NodeExistsError:
            return False
        except NoNodeError:
            self.ensure_exists(path.rpartition("/")[0])
            return self.create(path, data, ephemeral=ephemeral)
        return True

    def ensure_exists(self, path: str) -> None:
        """Create a persistent znode with no data, and its parents."""
        if path and self.get(path) is None:
            self.create(path, b"")

    def write(self, path: str, data: bytes, version: int) -> int | None:
        """The new version; None if it has another version than this, or is absent."""
        stat = self._call_versioned(f"write {path}", lambda client: client.set_async(path, data, version))
        return None if stat is None else int(stat.version)

    def delete(self, path: str, version: int) -> bool:
        """True if it was deleted; False if it has another version, or is absent."""
        return self._call_versioned(f"delete {path}", lambda client: client.delete_async(path, version)) is not None

    def _call_versioned(self, what: str, act: Callable[[KazooClient], Any]) -> Any:
        try:
            return self.call(what, act)
        except (NoNodeError, BadVersionError):
            return None

    def create_ephemerals(self, nodes: Mapping[str, bytes]) -> bool:
        """Create ephemeral znodes, all or none, whose parents exist; False if one exists already."""
        transaction = self._client.transaction()
        for path, data in nodes.items():
            transaction.create(path, data, self._acl, ephemeral=True)
        results = self.call("register", lambda _: transaction.commit_async())
        failed = [result for result in results if isinstance(result, Exception)]
        if any(isinstance(result, NodeExistsError) for result in failed):
            return False
        if failed:
            raise error_for(failed[0], f"{self.where}: register")
        return True


def _to_group_znode(answer: tuple[bytes | None, Any]) -> GroupZnode:
    data, stat = answer
    return GroupZnode(data or b"", stat.version, stat.ephemeralOwner, stat.mzxid)


TOPICS: Final = "/brokers/topics"
_NEW: Final = MemberProgress(0, Mode.ZOOKEEPER, settled=False)

Registrations = Mapping[str, Registration | Unreadable]


class GroupZnodes:
    """One member's view of its group's znodes.

    `migrates`: it registers as migration-aware; a legacy member sees itself as such too.
    """

    def __init__(
        self, session: GroupSession, group: str, consumer: str, registration: Registration, *, migrates: bool, internal_too: bool
    ) -> None:
        self.paths = GroupPaths(group)
        self._zk = session
        self._consumer = consumer
        self._registration = registration
        self._migrates = migrates
        self._internal_too = internal_too
        self._own = f"{self.paths.ids}/{consumer}"
        self._own_migration = f"{self.paths.migration_ids}/{consumer}"
        self._known: set[str] = set()  # migrate, or did: Kafka keeps a dead member for its session, and no member delivers for it
        self._versions: dict[TopicPartition, int | None] = {}
        self._written: dict[TopicPartition, int] = {}
        self._resets: dict[TopicPartition, int] = {}  # read and not forgotten: their znodes' versions

    def partition_of_owner_path(self, path: str) -> TopicPartition | None:
        """The partition whose owner's znode this is."""
        rest = path.removeprefix(f"{self.paths.root}/owners/")
        topic, _, partition = rest.rpartition("/")
        return TopicPartition(topic, int(partition)) if rest != path and topic and is_number(partition) else None

    # ------------------------------------------------------------------------------------------------------ registration

    def register(self, session: int) -> None:
        """Create all of the member's znodes at once; raises `Unreachable` while those of an earlier session are left."""
        for folder in (self.paths.ids, self.paths.migration_ids) if self._migrates else (self.paths.ids,):
            self._zk.ensure_exists(folder)
        own_znodes = self._registration_znodes()
        existing = self._zk.get_all({path: path for path in own_znodes})
        if own_znodes.keys() == existing.keys() and all(znode.session == session for znode in existing.values()):
            return
        for path, znode in existing.items():
            if znode.session == session:
                self._zk.delete(path, znode.version)  # half of it is left: the other half was deleted
        if self._zk.session != session or not self._zk.create_ephemerals(own_znodes):
            raise Unreachable(f"{self._own} exists, of another session, or the session changed")

    def _registration_znodes(self) -> dict[str, bytes]:
        nodes = {self._own: write_registration(self._registration)}
        return nodes | ({self._own_migration: write_progress(self._registration, _NEW)} if self._migrates else {})

    def deregister(self) -> None:
        """Delete those of this session, `ids` first."""
        for path in (self._own, self._own_migration) if self._migrates else (self._own,):
            znode = self._zk.get(path)
            if znode is not None and znode.session == self._zk.session:
                self._zk.delete(path, znode.version)

    def publish(self, progress: MemberProgress) -> None:
        """Publish the member's progress, for a mode switch that waits for all members."""
        znode = self._zk.get(self._own_migration) if self._migrates else None
        if znode is not None and znode.session == self._zk.session:
            self._zk.write(self._own_migration, write_progress(self._registration, progress), znode.version)

    # --------------------------------------------------------------------------------------------------------- the view

    def observe(self, kafka_members: Iterable[KafkaMember] = ()) -> GroupView:
        """Observe the group, in the order that makes a half-seen joiner look unable to migrate; watches everything that it reads."""
        session = self._zk.session
        self._zk.sync()
        migrating = (
            frozenset(self._zk.children(self.paths.migration_ids, watch=True)) if self._migrates else frozenset({self._consumer})
        )
        self._known |= migrating
        registrations = self._read_registrations(self._zk.children(self.paths.ids, watch=True))
        mode = self._zk.get(self.paths.mode, watch=True) if self._migrates else None
        topics = self._read_topics(registrations)
        if session is None or session != self._zk.session:
            raise Unreachable("the session changed in the meantime")
        return GroupView(
            session,
            mode.changed if mode else 0,
            mode.data if mode else None,
            registrations,
            migrating,
            topics,
            self._read_owned_partitions(topics),
            foreign_partitions(kafka_members, self._known),
        )

    def _read_registrations(self, names: Iterable[str]) -> dict[str, Registration | Unreadable]:
        existing = self._zk.get_all({name: f"{self.paths.ids}/{name}" for name in names})
        return {name: read_registration(znode.data) for name, znode in existing.items()}

    def _read_topics(self, registrations: Registrations) -> dict[str, Collection[int]]:
        names = wanted_topics(registrations, lambda: self._zk.children(TOPICS, watch=True), internal=self._internal_too)
        existing = self._zk.get_all({name: f"{TOPICS}/{name}" for name in sorted(names)}, watch=True)
        return {name: partitions_in(name, znode.data) for name, znode in existing.items()}

    def _read_owned_partitions(self, topics: Iterable[str]) -> frozenset[TopicPartition]:
        owners = {topic: self._zk.children(f"{self.paths.root}/owners/{topic}") for topic in topics}
        return frozenset(TopicPartition(topic, int(name)) for topic, names in owners.items() for name in names if is_number(name))

    # ------------------------------------------------------------------------------------------------------------ owners

    def read_owner(self, topic_partition: TopicPartition) -> int | None:
        """The session that owns it, watched; None: no owner."""
        znode = self._zk.get(self.paths.owner(topic_partition), watch=True)
        return None if znode is None else znode.session

    def claim(self, topic_partition: TopicPartition, thread: str) -> int | None:
        """Try to create the owner's znode; returns the owner's session. A znode of our own earlier claim gets this thread."""
        if not self._zk.create(self.paths.owner(topic_partition), thread.encode(), ephemeral=True):
            self.relabel(topic_partition, thread)
        return self.read_owner(topic_partition)

    def relabel(self, topic_partition: TopicPartition, thread: str) -> None:
        """Write another thread's name into our own owner znode; nothing if it is not ours."""
        znode = self._read_own_claim(topic_partition)
        if znode is not None and znode.data != thread.encode():
            self._zk.write(self.paths.owner(topic_partition), thread.encode(), znode.version)

    def release(self, topic_partition: TopicPartition) -> int | None:
        """Delete the owner's znode if this session made it and it is unchanged; returns the remaining owner's session."""
        znode = self._read_own_claim(topic_partition)
        if znode is not None:
            self._zk.delete(self.paths.owner(topic_partition), znode.version)
        return self.read_owner(topic_partition)

    def _read_own_claim(self, topic_partition: TopicPartition) -> GroupZnode | None:
        znode = self._zk.get(self.paths.owner(topic_partition))
        of_session = znode is not None and znode.session == self._zk.session
        return znode if znode is not None and of_session and znode.data.startswith(f"{self._consumer}-".encode()) else None

    # ----------------------------------------------------------------------------------------------------------- offsets

    def read_offset(self, topic_partition: TopicPartition) -> int | None:
        """The committed offset; None if there is none, or it cannot be read. Later writes build on this version."""
        znode = self._zk.get(self.paths.offset(topic_partition))
        self._versions[topic_partition] = None if znode is None else znode.version
        self._written.pop(topic_partition, None)
        offset = None if znode is None else read_offset(znode.data)
        if not isinstance(offset, int):
            return None
        self._written[topic_partition] = offset
        return offset

    def read_reset(self, topic_partition: TopicPartition) -> int | None:
        """The offset that an operator recorded; it counts until `forget_reset`. A value that is no offset is logged and ignored."""
        znode = self._zk.get(self.paths.reset(topic_partition))
        offset = None if znode is None else read_offset(znode.data)
        self._resets.pop(topic_partition, None)
        if znode is None or not isinstance(offset, int) or offset < 0:
            if znode is not None:
                _log.warning("%s holds no offset: ignoring it", self.paths.reset(topic_partition))
            return None
        self._resets[topic_partition] = znode.version
        return offset

    def forget_reset(self, topic_partition: TopicPartition) -> None:
        """Delete only the one that was read: a later one is for the next holder."""
        version = self._resets.get(topic_partition)
        if version is not None:
            self._zk.delete(self.paths.reset(topic_partition), version)
            self._resets.pop(topic_partition, None)

    def write_offset(self, topic_partition: TopicPartition, offset: int, still_ours: Callable[[], bool]) -> bool:
        """Commit by version; true once this or a higher offset is committed.

        A writer that ignores owners (a legacy consumer that woke too late, R14) is overwritten. If it wrote a higher offset, and
        no operator has reset it, only the next commit overwrites it.
        """
        if self._written.get(topic_partition) == offset:
            return True
        for _ in range(3):
            if not still_ours():
                return False
            if self._write_if_unchanged(topic_partition, offset):
                return True
            committed_offset = self.read_offset(topic_partition)
            if committed_offset is not None and committed_offset >= offset and topic_partition not in self._resets:
                return True
            _log.warning(
                "%s: a client that does not own it committed %s; overwriting it with %s",
                self.paths.offset(topic_partition),
                committed_offset,
                offset,
            )
        return False

    def _write_if_unchanged(self, topic_partition: TopicPartition, offset: int) -> bool:
        path, version = self.paths.offset(topic_partition), self._versions.get(topic_partition)
        if version is None:
            new = 0 if self._zk.create(path, encode_offset(offset)) else None
        else:
            new = self._zk.write(path, encode_offset(offset), version)
        if new is None:
            return False
        self._versions[topic_partition], self._written[topic_partition] = new, offset
        return True


def wanted_topics(registrations: Registrations, existing: Callable[[], Iterable[str]], *, internal: bool) -> frozenset[str]:
    """The topics that any of the members wants; all names are read only if a member has a wildcard."""
    readable = [entry for entry in registrations.values() if isinstance(entry, Registration)]
    names = tuple(existing()) if any(entry.wildcard is not None for entry in readable) else ()
    selections = [topics_of(entry, names, internal=internal) for entry in readable]
    return frozenset(topic for topics in selections if not isinstance(topics, Unreadable) for topic in topics)


def partitions_in(topic: str, data: bytes) -> Collection[int]:
    """A topic's partitions. Raises `Failed` for an unreadable znode: taken for none, the member would release all its partitions."""
    topic_state = znodes.parse_topic(topic, data)
    if isinstance(topic_state, Malformed):
        raise Failed(
            f"{topic_state.path} holds {topic_state.content}: no member can assign the partitions of {topic}; find out which client wrote it"
        )
    return tuple(sorted(topic_state.partitions))


def _return_sent(result: Any, _client: KazooClient) -> Any:
    """A request that was sent already."""
    return result
