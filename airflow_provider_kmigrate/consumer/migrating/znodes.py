"""A group's znodes as a member acts on them: its registration, the look at the group, owners and offsets.

Every call is one bounded piece of I/O that may be repeated; each raises ours where ZooKeeper did not answer, and then nothing is
known of what it did. Whoever asks again finds out, since an ephemeral znode tells whose session made it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.group_znodes import is_number
from airflow_provider_kmigrate.consumer.migrating.zookeeper import GroupSession, Znode
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember, foreign, topics_of
from airflow_provider_kmigrate.core.coordination.registration import (
    GroupPaths,
    Mode,
    Progress,
    Registration,
    Unreadable,
    read_offset,
    read_registration,
    write_offset,
    write_progress,
    write_registration,
)
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member.words import GroupView
from airflow_provider_kmigrate.core.model import Malformed
from airflow_provider_kmigrate.exceptions import Failed, Unreachable

_log = logging.getLogger(__name__)
TOPICS: Final = "/brokers/topics"
_NEW: Final = Progress(0, Mode.ZOOKEEPER, settled=False)

Registrations = Mapping[str, Registration | Unreadable]


class GroupZnodes:
    """Of one member. `migrates`: it registers as migration-aware; an old member sees itself as such, so that it misses nothing."""

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
        self._known: set[str] = set()  # who migrates, or did: Kafka keeps a dead one for its session, and nobody delivers for it
        self._versions: dict[TopicPartition, int | None] = {}
        self._written: dict[TopicPartition, int] = {}
        self._resets: dict[TopicPartition, int] = {}  # read and not forgotten: their znodes' versions

    def is_owner_path(self, path: str) -> TopicPartition | None:
        """The partition whose owner's znode this is."""
        rest = path.removeprefix(f"{self.paths.root}/owners/")
        topic, _, partition = rest.rpartition("/")
        return TopicPartition(topic, int(partition)) if rest != path and topic and is_number(partition) else None

    # ------------------------------------------------------------------------------------------------------ registration

    def register(self, session: int) -> None:
        """All of the member's znodes at once, whole; raises `Unreachable` while those of an earlier session are left."""
        for folder in (self.paths.ids, self.paths.migration_ids) if self._migrates else (self.paths.ids,):
            self._zk.make_folder(folder)
        wanted = self._registrations()
        found = self._zk.get_all({path: path for path in wanted})
        if wanted.keys() == found.keys() and all(znode.session == session for znode in found.values()):
            return
        for path, znode in found.items():
            if znode.session == session:
                self._zk.delete(path, znode.version)  # half of it is left: somebody deleted the other half
        if self._zk.session != session or not self._zk.make_together(wanted):
            raise Unreachable(f"{self._own} is there, of another session, or the session changed")

    def _registrations(self) -> dict[str, bytes]:
        nodes = {self._own: write_registration(self._registration)}
        return nodes | ({self._own_migration: write_progress(self._registration, _NEW)} if self._migrates else {})

    def deregister(self) -> None:
        """Those of this session, `ids` first."""
        for path in (self._own, self._own_migration) if self._migrates else (self._own,):
            znode = self._zk.get(path)
            if znode is not None and znode.session == self._zk.session:
                self._zk.delete(path, znode.version)

    def publish(self, progress: Progress) -> None:
        """How far the member is, for whoever waits for all members to follow a toggle."""
        znode = self._zk.get(self._own_migration) if self._migrates else None
        if znode is not None and znode.session == self._zk.session:
            self._zk.write(self._own_migration, write_progress(self._registration, progress), znode.version)

    # --------------------------------------------------------------------------------------------------------- the view

    def look(self, kafka_members: Iterable[KafkaMember] = ()) -> GroupView:
        """In the order that makes a half-seen joiner look like one that cannot migrate; watches everything that it reads."""
        session = self._zk.session
        self._zk.sync()
        migrating = (
            frozenset(self._zk.children(self.paths.migration_ids, watch=True)) if self._migrates else frozenset({self._consumer})
        )
        self._known |= migrating
        registrations = self._registered(self._zk.children(self.paths.ids, watch=True))
        mode = self._zk.get(self.paths.mode, watch=True) if self._migrates else None
        topics = self._topics(registrations)
        if session is None or session != self._zk.session:
            raise Unreachable("the session changed meanwhile")
        return GroupView(
            session,
            mode.changed if mode else 0,
            mode.data if mode else None,
            registrations,
            migrating,
            topics,
            self._owned(topics),
            foreign(kafka_members, self._known),
        )

    def _registered(self, names: Iterable[str]) -> dict[str, Registration | Unreadable]:
        found = self._zk.get_all({name: f"{self.paths.ids}/{name}" for name in names})
        return {name: read_registration(znode.data) for name, znode in found.items()}

    def _topics(self, registrations: Registrations) -> dict[str, Collection[int]]:
        names = wanted_topics(registrations, lambda: self._zk.children(TOPICS, watch=True), internal=self._internal_too)
        found = self._zk.get_all({name: f"{TOPICS}/{name}" for name in sorted(names)}, watch=True)
        return {name: partitions_in(name, znode.data) for name, znode in found.items()}

    def _owned(self, topics: Iterable[str]) -> frozenset[TopicPartition]:
        owners = {topic: self._zk.children(f"{self.paths.root}/owners/{topic}") for topic in topics}
        return frozenset(TopicPartition(topic, int(name)) for topic, names in owners.items() for name in names if is_number(name))

    # ------------------------------------------------------------------------------------------------------------ owners

    def owner(self, where: TopicPartition) -> int | None:
        """Whose session owns it, watched; None: nobody's."""
        znode = self._zk.get(self.paths.owner(where), watch=True)
        return None if znode is None else znode.session

    def claim(self, where: TopicPartition, thread: str) -> int | None:
        """Try to create the owner's znode, and tell who has it then. One that an earlier claim of ours made is given this thread."""
        if not self._zk.make(self.paths.owner(where), thread.encode(), ephemeral=True):
            self.relabel(where, thread)
        return self.owner(where)

    def relabel(self, where: TopicPartition, thread: str) -> None:
        znode = self._ours(where)
        if znode is not None and znode.data != thread.encode():
            self._zk.write(self.paths.owner(where), thread.encode(), znode.version)

    def release(self, where: TopicPartition) -> int | None:
        """Delete the owner's znode if this session made it and nobody wrote into it meanwhile; tell who has it then."""
        znode = self._ours(where)
        if znode is not None:
            self._zk.delete(self.paths.owner(where), znode.version)
        return self.owner(where)

    def _ours(self, where: TopicPartition) -> Znode | None:
        znode = self._zk.get(self.paths.owner(where))
        of_session = znode is not None and znode.session == self._zk.session
        return znode if znode is not None and of_session and znode.data.startswith(f"{self._consumer}-".encode()) else None

    # ----------------------------------------------------------------------------------------------------------- offsets

    def read_offset(self, where: TopicPartition) -> int | None:
        """What is committed; None where nothing is, or nothing that can be read. Later writes build on this version."""
        znode = self._zk.get(self.paths.offset(where))
        self._versions[where] = None if znode is None else znode.version
        self._written.pop(where, None)
        found = None if znode is None else read_offset(znode.data)
        if not isinstance(found, int):
            return None
        self._written[where] = found
        return found

    def read_reset(self, where: TopicPartition) -> int | None:
        """What an operator recorded; it counts until `forget_reset`. What is no offset counts as nothing, and is told."""
        znode = self._zk.get(self.paths.reset(where))
        found = None if znode is None else read_offset(znode.data)
        self._resets.pop(where, None)
        if znode is None or not isinstance(found, int) or found < 0:
            if znode is not None:
                _log.warning("%s holds no offset: it is passed over", self.paths.reset(where))
            return None
        self._resets[where] = znode.version
        return found

    def forget_reset(self, where: TopicPartition) -> None:
        """Only the one that was read: what an operator wrote since is for the next holder."""
        version = self._resets.get(where)
        if version is not None:
            self._zk.delete(self.paths.reset(where), version)
            self._resets.pop(where, None)

    def write_offset(self, where: TopicPartition, offset: int, still_ours: Callable[[], bool]) -> bool:
        """Commit by version. A writer who knows no owners (an old consumer that woke too late, R14) is written over; where it
        wrote more than this, and no operator has reset the offset, only by the next commit.
        """
        if self._written.get(where) == offset:
            return True
        for _ in range(3):
            if not still_ours():
                return False
            if self._write(where, offset):
                return True
            theirs = self.read_offset(where)
            if theirs is not None and theirs >= offset and where not in self._resets:
                return True
            _log.warning(
                "%s: somebody who does not own it committed %s; %s is committed over it", self.paths.offset(where), theirs, offset
            )
        return False

    def _write(self, where: TopicPartition, offset: int) -> bool:
        path, version = self.paths.offset(where), self._versions.get(where)
        if version is None:
            new = 0 if self._zk.make(path, write_offset(offset)) else None
        else:
            new = self._zk.write(path, write_offset(offset), version)
        if new is None:
            return False
        self._versions[where], self._written[where] = new, offset
        return True


def wanted_topics(registrations: Registrations, existing: Callable[[], Iterable[str]], *, internal: bool) -> frozenset[str]:
    """The topics that any of the members wants; all names are asked for only where one has a wildcard."""
    readable = [entry for entry in registrations.values() if isinstance(entry, Registration)]
    names = tuple(existing()) if any(entry.wildcard is not None for entry in readable) else ()
    amounts = [topics_of(entry, names, internal=internal) for entry in readable]
    return frozenset(topic for topics in amounts if not isinstance(topics, Unreadable) for topic in topics)


def partitions_in(topic: str, data: bytes) -> Collection[int]:
    """A topic's partitions. Raises `Failed` for a znode that cannot be read: taken for none, the member would let go of all it holds."""
    found = znodes.topic(topic, data)
    if isinstance(found, Malformed):
        raise Failed(f"{found.path} holds {found.content}: no member can share {topic} out; look at what wrote it")
    return tuple(sorted(found.partitions))
