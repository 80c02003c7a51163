"""Kafka's tree in ZooKeeper: read in few round trips, written only by fenced transactions on an allow-list of paths.

Every path is below the chroot of the settings, which is never created: a wrong chroot is a wrong cluster. Raises what
`zookeeper_session` maps kazoo's errors to; `WrongCluster` (Z01) if the chroot does not exist, no Kafka cluster in it, or its id is
unreadable.

Preflight reads more beside a `ZkView`: dynamic settings, users, ACLs, times, and the servers themselves. Only the names of
settings are kept: brokers have passwords among them.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self
from urllib.parse import unquote

from kazoo.client import TransactionRequest
from kazoo.exceptions import NoAuthError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import Exists
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.offset_writers import find_unregistered_commits
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.storm_spouts import find_storm_spouts
from airflow_provider_kmigrate.clients.tls import find_chain_end, tls_context
from airflow_provider_kmigrate.clients.znodes import (
    CONSUMERS,
    COUNTS,
    EXPANSION,
    NOTES,
    REGISTERED,
    UNFLAGGED,
    Create,
    Delete,
    Operation,
    Set,
    Znode,
    check_allowed,
    outdated_token,
    raise_if_malformed,
)
from airflow_provider_kmigrate.clients.zookeeper_session import (
    Changed,
    ReadKind,
    Session,
    ZnodeRead,
    error_for,
    name_strangers,
    own_identities,
)
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerRegistration,
    LeaderTime,
    LiveMembers,
    Malformed,
    Migration,
    OthersRight,
    PartitionMetadata,
    Reason,
    RequestTime,
    TopicMetadata,
    Written,
    ZkAcl,
    ZkView,
    ZooKeeperServer,
    ZooKeeperTree,
)
from airflow_provider_kmigrate.core.cluster_state.znode_formats import (
    ACL,
    BROKER,
    CONFIG,
    CONFIG_CHANGE,
    FEATURE,
    PRODUCER_IDS,
    TOKEN,
)
from airflow_provider_kmigrate.core.member.registration import INTERNAL, is_number
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Fenced, WrongCluster

_CHANGES = ("/config/changes", "/kafka-acl-changes", "/kafka-acl-extended-changes")
_COORDINATOR_TOPICS = {topic: f"/brokers/topics/{topic}" for topic in sorted(INTERNAL)}
_GUARDED = ("/controller_epoch", "/brokers/topics", "/config")
_WRITES = 2 | 4  # ZooKeeper's WRITE and CREATE
_READS = 1  # ZooKeeper's READ
#: What brokers, controllers, consumers and kmigrate keep at the top of the tree.
_ROOTS = frozenset(
    [
        "/_kmigrate",
        "/admin",
        "/brokers",
        "/cluster",
        "/config",
        "/consumers",
        "/controller",
        "/controller_epoch",
        "/delegation_token",
        "/feature",
        "/isr_change_notification",
        "/kafka-acl",
        "/kafka-acl-changes",
        "/kafka-acl-extended",
        "/kafka-acl-extended-changes",
        "/latest_producer_id_block",
        "/log_dir_event_notification",
        "/migration",
    ]
)
_TOKENS = "/delegation_token/tokens"  # a path
_CMAK = "/kafka-manager"  # outside all chroots
_VERSION = re.compile(r"Zookeeper version: ([0-9][0-9.]*)")
_MODE = re.compile(r"^Mode: (\w+)", re.MULTILINE)
_NEWEST = 20  # notifications that are reported
_SRVR_TIMEOUT = 3.0  # seconds for each server
_ANSWER = 65_536
_CONNECTIONS = 8_388_608  # bytes of an answer to `cons`: some 200 for each client
_CONNECTION = re.compile(r"^ ?/([^\n\[]{1,100})\[[0-9]+\]\([^\n]*\bsid=0x([0-9a-f]{1,16})\b", re.MULTILINE)
_UNSIGNED = 2**64 - 1  # sessions are signed in a znode, and not in an answer


class _TreeReads:
    """Reads beside a view; keeps the newest time that ZooKeeper gave to any znode, and the malformed znodes."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self.zookeeper = zookeeper
        self.latest = 0.0
        self.malformed: list[Malformed] = []

    def read_znodes(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, Znode]]:
        """Each of these children of a folder that exists, by name."""
        for path, znode in self.zookeeper.read_znodes(f"{folder}/{name}" for name in names):
            self.latest = max(self.latest, znode.changed_at)
            yield path.removeprefix(f"{folder}/"), znode

    def read_config_keys(self, folder: str) -> dict[str, tuple[str, ...]]:
        """The keys set for each entity; entities without any are left out.

        An unreadable znode is only named: it may hold salted passwords.
        """
        keys_by_entity = {}
        for name, znode in self.read_znodes(folder, self.zookeeper.children(folder)):
            if not znode.data:  # Kafka creates it as a parent, such as for a user whose quotas are all of single clients
                continue
            keys = znodes.parse_configs(f"{folder}/{name}", znode.data)
            if isinstance(keys, Malformed):
                self._note_secret(keys)
            elif keys:
                keys_by_entity[unquote(name)] = tuple(sorted(keys))
        return keys_by_entity

    def _note_secret(self, malformed: Malformed) -> None:
        """Keep of a malformed znode its path, and its version if that is unknown: it may hold salted passwords, or the key of a token."""
        self.malformed.append(malformed if malformed.unknown_version else Malformed(malformed.path, ""))

    def note_unread_znodes(self, kind: str, folder: str, names: Iterable[str] | None = None) -> None:
        """Note each znode of this kind in a folder that later reads would refuse; one without data is only the parent of others."""
        for name, znode in self.read_znodes(folder, self.zookeeper.children(folder) if names is None else names):
            fields = znodes.parse_znode(f"{folder}/{name}", znode.data or b"{}", dict, kind if znode.data else "")
            if isinstance(fields, Malformed):
                self._note_secret(fields)

    def read_topic_acls(self) -> Iterator[ZkAcl]:
        """The rules of `/kafka-acl/Topic` and, for other patterns, of `/kafka-acl-extended/prefixed/Topic`."""
        patterns = self.zookeeper.children("/kafka-acl-extended")
        extended = [(pattern.upper(), f"/kafka-acl-extended/{pattern}") for pattern in patterns]
        for pattern, root in [("LITERAL", "/kafka-acl"), *extended]:
            for folder, names in self.zookeeper.children_by_path(f"{root}/{kind}" for kind in self.zookeeper.children(root)):
                resource = folder.removeprefix(f"{root}/")
                for name, znode in self.read_znodes(folder, names):
                    rules = znodes.parse_znode(f"{folder}/{name}", znode.data, partial(_parse_acls, resource, name, pattern), ACL)
                    if isinstance(rules, Malformed):
                        self.malformed.append(rules)
                    else:
                        yield from rules

    def list_recent_changes(self) -> tuple[tuple[str, float], ...]:
        """The newest notifications of changed settings and ACLs, newest first; Kafka keeps each for some 15 minutes."""
        changes = []
        for folder in _CHANGES:
            for _, znode in self.read_znodes(folder, self.zookeeper.children(folder)[-_NEWEST:]):
                changes.append((_describe_entity(znode.data) if folder == _CHANGES[0] else "access rules", znode.changed_at))
        return tuple(sorted(changes, key=lambda change: -change[1])[:_NEWEST])

    def read_registrations(self) -> dict[int, BrokerRegistration]:
        """Each broker's registration, as the broker last wrote it: it does again if its listeners change."""
        registrations = {}
        for name, znode in self.read_znodes("/brokers/ids", filter(is_number, self.zookeeper.children("/brokers/ids"))):
            broker_time = znodes.parse_znode(
                f"/brokers/ids/{name}", znode.data, lambda fields: int(fields["timestamp"]) / 1000, BROKER
            )
            if isinstance(broker_time, Malformed):
                self.malformed.append(broker_time)
            else:
                registrations[int(name)] = BrokerRegistration(broker_time, znode.changed_at)
        return registrations


def _parse_acls(resource: str, name: str, pattern: str, fields: Mapping[str, Any]) -> list[ZkAcl]:
    keys = ("principal", "operation", "permissionType")
    return [ZkAcl(resource, name, pattern, *(str(entry[key]) for key in keys)) for entry in fields["acls"]]


def _describe_entity(data: bytes) -> str:
    entity = znodes.parse_znode("notification", data, lambda fields: f"settings of {fields['entity_path']}", CONFIG_CHANGE)
    return "settings" if isinstance(entity, Malformed) else entity


def _find_guarding_schemes(session: Session) -> tuple[str, ...]:
    """The identity schemes without which Kafka's znodes cannot be written."""
    client = session.client()
    waiting = {path: client.get_acls_async(path) for path in _GUARDED}
    schemes = set()
    for path, result in waiting.items():
        acls, _ = session.wait_for_result(f"ACL of {path}", result)
        if not any(acl.id.scheme == "world" and acl.perms & _WRITES for acl in acls):
            schemes |= {acl.id.scheme for acl in acls} - {"world"}
    return tuple(sorted(schemes))


def _exists_outside_chroot(session: Session, path: str) -> bool:
    """True if a znode outside our chroot exists; kazoo's own call would put the chroot in front."""
    client = session.client()
    result = client.handler.async_result()
    client._call(Exists(path, None), result)  # noqa: SLF001  # as kazoo itself does
    return session.wait_for_result(path, result) is not None


def _ask_server(address: str, settings: ZooKeeperSettings) -> ZooKeeperServer:
    answer, certificate_end = _ask_word(address, settings, b"srvr", _ANSWER)
    version, mode = _VERSION.search(answer), _MODE.search(answer)
    return ZooKeeperServer(address, version[1].rstrip(".") if version else None, mode[1] if mode else None, certificate_end)


def _ask_word(address: str, settings: ZooKeeperSettings, word: bytes, limit: int) -> tuple[str, float]:
    """A server's answer to a four-letter word, empty if there is none, and when its certificate ends. A server that does not allow the word says so."""
    host, _, port = address.rpartition(":")
    certificate_end = inf
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _SRVR_TIMEOUT) as raw:
            raw.settimeout(_SRVR_TIMEOUT)
            stream: socket.socket = raw
            if settings.use_tls:
                stream = secured = tls_context(settings).wrap_socket(raw, server_hostname=host.strip("[]"))
                certificate_end = find_chain_end(secured)
            stream.sendall(word)
            return _receive_all(stream, limit).decode(errors="replace"), certificate_end
    except (OSError, ValueError, AuthenticationFailed):
        return "", certificate_end


def parse_connections(answer: str) -> dict[int, str]:
    """An answer to `cons`: session -> the client's address. Lines of clients without a session, and anything else, are left out."""
    return {int(found[2], 16): printable(found[1]) for found in _CONNECTION.finditer(answer)}


def _receive_all(stream: socket.socket, limit: int) -> bytes:
    data, deadline = bytearray(), time.monotonic() + _SRVR_TIMEOUT
    while len(data) < limit and time.monotonic() < deadline and (chunk := stream.recv(65_536)):
        data += chunk
    return bytes(data)


_UNREGISTERED_S = 10.0  # how old the last look for commits without a registration may be


class ZnodeReads(Protocol):
    """Reads of a tree of znodes: `ZooKeeper`'s, or a backup's. What is absent is left out."""

    def read(self, path: str) -> tuple[bytes, int] | None:
        """A znode's data and version; None if it is absent."""

    def children(self, path: str) -> list[str]:
        """The names below a znode, sorted."""

    def read_children(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Name and data of these children of a folder."""

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Each of these znodes, with the names below it, sorted."""


def read_topics(tree: ZnodeReads) -> dict[str, TopicMetadata]:
    """Every topic with its overrides and each partition's replicas, without leaders and ISRs. Raises `Failed` if a znode is malformed."""
    topics = {topic.name: topic for topic in _read_assignments(tree)}
    config_znodes = tree.read_children("/config/topics", topics)
    overrides = {name: raise_if_malformed(znodes.parse_configs(f"/config/topics/{name}", data)) for name, data in config_znodes}
    return {name: replace(topic, configs=overrides.get(name, {})) for name, topic in sorted(topics.items())}


def _read_assignments(tree: ZnodeReads) -> list[TopicMetadata]:
    return [
        raise_if_malformed(znodes.parse_topic(name, data))
        for name, data in tree.read_children("/brokers/topics", tree.children("/brokers/topics"))
    ]


class ZooKeeper:
    """One session; connects at the first call and again when needed. Thread-safe."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._session = Session(settings)
        self._time: LeaderTime | None = None  # as of our last write
        self._unregistered: tuple[float, Mapping[str, float]] | None = None  # when it was read, and what

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the session; a later call opens a new one."""
        self._session.close()

    def view(self, *, groups: bool = False) -> ZkView:
        """One instant of the tree in one round trip; with `groups` a second one, a moment later."""
        asked_at = time.monotonic()
        root, identity, ids, controller, epoch, migration, deletions, moves, *others = self._session.read(
            "view",
            ZnodeRead(ReadKind.DATA, "/"),
            ZnodeRead(ReadKind.DATA, "/cluster/id"),
            ZnodeRead(ReadKind.CHILDREN, "/brokers/ids"),
            ZnodeRead(ReadKind.DATA, "/controller"),
            ZnodeRead(ReadKind.DATA, "/controller_epoch"),
            ZnodeRead(ReadKind.DATA, "/migration"),
            ZnodeRead(ReadKind.CHILDREN, "/admin/delete_topics"),
            ZnodeRead(ReadKind.DATA, "/admin/reassign_partitions"),
            *(ZnodeRead(ReadKind.DATA, path) for path in (*NOTES, EXPANSION, COUNTS, *_COORDINATOR_TOPICS.values())),
        )
        read = RequestTime(asked_at, time.monotonic())
        rollback_note, registered, unflagged, expansion, counts, *coordinators = others
        versions = zip(_COORDINATOR_TOPICS, coordinators, strict=True)
        living = self._read_live_members() if groups else {}
        return ZkView(
            cluster_id=self._require_cluster_id(root, identity),
            broker_ids=tuple(sorted(int(name) for name in ids or () if is_number(name))),
            controller=controller and znodes.parse_controller(_data(controller), ephemeral=bool(controller[1].ephemeralOwner)),
            controller_epoch=znodes.parse_controller_epoch(_data(epoch)) if epoch else None,
            migration=migration and self._parse_migration(migration, read),
            pending_deletions=tuple(sorted(deletions or ())),
            reassigning=moves is not None,
            live_groups=tuple(living),
            live_members=living,
            topic_versions={topic: topic_znode[1].version for topic, topic_znode in versions if topic_znode},
            rolled_back=znodes.parse_rolled_back(_data(rollback_note)) if rollback_note else {},
            registered=znodes.parse_node_ids(REGISTERED, _data(registered)) if registered else frozenset(),
            unflagged=znodes.parse_node_ids(UNFLAGGED, _data(unflagged)) if unflagged else frozenset(),
            expansion=znodes.parse_expansion(_data(expansion)) if expansion else None,
            partition_counts=znodes.parse_partition_counts(_data(counts)) if counts else None,
        )

    def _parse_migration(self, znode: tuple[bytes | None, ZnodeStat], read: RequestTime) -> Migration | Malformed:
        stat = znode[1]
        age = self._time.age_of(_written_at(stat), read) if self._time else None
        return znodes.parse_migration(_data(znode), stat.version, stat.created, age)

    def cluster_id(self) -> str:
        """The cluster id that its first broker chose."""
        return self._require_cluster_id(
            *self._session.read("cluster id", ZnodeRead(ReadKind.DATA, "/"), ZnodeRead(ReadKind.DATA, "/cluster/id"))
        )

    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic with its overrides and each partition's replicas, leader (-1: none, or never elected) and ISR."""
        topics = read_topics(self)
        states = self._read_states(topics.values())
        return {name: replace(topic, partitions=states[name]) for name, topic in topics.items()}

    def topic_assignments(self) -> list[TopicMetadata]:
        """Every topic with its id and replicas, without states and settings."""
        return _read_assignments(self)

    def state_paths(self) -> list[str]:
        """The paths of all partition states, existing or not."""
        return [_state_path(topic, index) for topic in _read_assignments(self) for index in topic.partitions]

    def state_epoch(self) -> int:
        """The highest controller_epoch in any partition's state; -1 if no partition has a state yet."""
        states = self._session.stream("partition states", ReadKind.DATA, self.state_paths())
        return max((raise_if_malformed(znodes.parse_state_epoch(path, _data(znode))) for path, znode in states), default=-1)

    def read_tree(self) -> ZooKeeperTree:
        """What preflight needs beside a view, read at about one time."""
        reads = _TreeReads(self)
        users = reads.read_config_keys("/config/users")  # reads children first, which brings the server up to date
        for folder in (
            "/config/clients",
            "/config/ips",
            *(f"/config/users/{user}/clients" for user in self.children("/config/users")),
        ):
            reads.note_unread_znodes(CONFIG, folder)
        reads.note_unread_znodes(TOKEN, _TOKENS)
        reads.note_unread_znodes(PRODUCER_IDS, "", ["latest_producer_id_block"])
        reads.note_unread_znodes(FEATURE, "", ["feature"])
        seqid = dict(reads.read_znodes("/brokers", ["seqid"]))
        return ZooKeeperTree(
            broker_settings=reads.read_config_keys("/config/brokers"),
            scram_users=tuple(user for user, keys in users.items() if any(key.startswith("SCRAM-") for key in keys)),
            tokens=len(self.children(_TOKENS)),
            acls=tuple(reads.read_topic_acls()),
            has_feature=bool(dict(reads.read_znodes("", ["feature"]))),
            generated_ids=seqid["seqid"].version if seqid else 0,
            changed=reads.list_recent_changes(),
            registrations=reads.read_registrations(),
            guarded=_find_guarding_schemes(self._session),
            others=self.find_others_right(znodes.ROOT),
            malformed=tuple(reads.malformed),
            latest=reads.latest,
            cmak=_exists_outside_chroot(self._session, _CMAK),
            storm_spouts=find_storm_spouts(self._session, (*_ROOTS, "/zookeeper", self._settings.chroot)),
        )

    def servers(self) -> tuple[ZooKeeperServer, ...]:
        """The answer of each server of the connection to `srvr`; all are asked at once: one that hangs delays no other."""
        addresses = self._settings.hosts.split(",")
        with ThreadPoolExecutor(len(addresses), "srvr") as threads:
            return tuple(threads.map(lambda address: _ask_server(address, self._settings), addresses))

    def find_clients(self, paths: Iterable[str]) -> dict[str, str]:
        """From which address the owner of each of these ephemeral znodes is connected, by `cons` of each server.

        What is not known is left out: servers may not allow the word (`4lw.commands.whitelist`), or not answer.
        """
        sessions = {path: znode.session & _UNSIGNED for path, znode in self.read_znodes(paths) if znode.session}
        if not sessions:
            return {}
        addresses, ask = (
            self._settings.hosts.split(","),
            lambda address: _ask_word(address, self._settings, b"cons", _CONNECTIONS)[0],
        )
        with ThreadPoolExecutor(len(addresses), "cons") as threads:
            clients = dict(chain.from_iterable(parse_connections(answer).items() for answer in threads.map(ask, addresses)))
        return {path: clients[session] for path, session in sessions.items() if session in clients}

    def tree(self) -> Iterator[tuple[str, bytes | None]]:
        """Every znode of the cluster, parents first; znodes that vanish meanwhile are left out. For backups.

        Without a chroot other applications' znodes are beside ours, which are theirs to read.
        """
        level = ["/"] if self._settings.chroot else sorted(_ROOTS & self._list_top_level())
        while level:
            level_znodes = [(name, data) for name, (data, _) in self._session.stream("tree", ReadKind.DATA, level)]
            yield from level_znodes
            families = self._session.stream("tree", ReadKind.CHILDREN, (name for name, _ in level_znodes))
            level = [f"{name.rstrip('/')}/{child}" for name, children in families for child in sorted(children)]

    def _list_top_level(self) -> set[str]:
        (names,) = self._session.read("tree", ZnodeRead(ReadKind.CHILDREN, "/"))
        return {f"/{name}" for name in names or ()}

    def read(self, path: str) -> tuple[bytes, int] | None:
        """A znode's data and version; None if it is absent."""
        (znode,) = self._session.read(path, ZnodeRead(ReadKind.DATA, path))
        return (_data(znode), znode[1].version) if znode else None

    def children(self, path: str) -> list[str]:
        """The names below a znode, sorted; none if it is absent."""
        (names,) = self._session.read(path, ZnodeRead(ReadKind.CHILDREN, path))
        return sorted(names or ())

    def read_children(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Name and data of those children of a folder that exist."""
        paths = {f"{folder}/{name}": name for name in names}
        return ((paths[path], _data(znode)) for path, znode in self._session.stream(folder, ReadKind.DATA, paths))

    def read_znodes(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode]]:
        """Each of these znodes that exists, in order."""
        for path, znode in self._session.stream("znodes", ReadKind.DATA, paths):
            stat = znode[1]
            yield path, Znode(_data(znode), stat.version, stat.mzxid, stat.mtime / 1000, stat.pzxid, stat.ephemeralOwner)

    def partitions_at_registration(self, topic: str, broker: int) -> int | None:
        """How many partitions a topic had when a broker registered; None if the broker is not registered (in KRaft mode).

        Znodes are created in one order for all: a partition whose znode is newer than the broker's did not exist then.
        """
        folder, ours = f"/brokers/topics/{topic}/partitions", f"/brokers/ids/{broker}"
        paths = [ours, *(f"{folder}/{name}" for name in self.children(folder))]
        created = {path: znode[1].czxid for path, znode in self._session.stream("znodes", ReadKind.DATA, paths)}
        registered = created.pop(ours, None)
        return None if registered is None else sum(zxid < registered for zxid in created.values())

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Each of these znodes that exists, with the names below it, sorted."""
        return ((path, sorted(names)) for path, names in self._session.stream("children", ReadKind.CHILDREN, paths))

    @property
    def is_anonymous(self) -> bool:
        """Whether ZooKeeper does not know who connects, so that what is created here belongs to any client."""
        return self._session.acl is OPEN_ACL_UNSAFE

    def find_others_right(self, path: str) -> OthersRight | None:
        """The first znode, from `/_kmigrate` down to `path`, that others may write too, or we may not; None: they are ours alone."""
        names = path.split("/")[1:]
        client = self._session.client()
        paths = [f"/{'/'.join(names[:depth])}" for depth in range(1, len(names) + 1)]
        waiting = [(ancestor, client.get_acls_async(ancestor)) for ancestor in paths]
        for ancestor, result in waiting:
            with contextlib.suppress(Changed):  # absent
                if right := self._judge_acl(ancestor, result):
                    return right
        return None

    def _judge_acl(self, path: str, acl_request: Any) -> OthersRight | None:
        try:
            acls, _ = self._session.wait_for_result(f"ACL of {path}", acl_request)
        except AuthenticationFailed as error:
            if not isinstance(error.__cause__, NoAuthError):  # our login was refused, which says nothing about the znode
                raise
            # a server shows the ACL of a closed znode only to those in it
            return OthersRight(path, "an identity that ZooKeeper does not name to kmigrate")
        writers = {(acl.id.scheme, acl.id.id) for acl in acls if acl.perms & ~_READS}
        if any(scheme == "world" for scheme, _ in writers):
            return OthersRight(path)
        other_writers = name_strangers(writers, own_identities(self._settings))
        return OthersRight(path, other_writers) if other_writers else None

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        """Commit all operations or none, and only while the fence is held; returns the new version of each znode set.

        Kafka's znodes, those of consumer groups too, need a fence and a version, or to be new; without a fence only our own root
        may be written. Raises `Forbidden` before anything is sent, `Fenced`, or `Changed` if a znode is not as it was. After
        `Unreachable` and `TimedOut` the result is unknown: read again.
        """
        for operation in operations:
            check_allowed(operation, is_fenced=holding is not None)
        transaction = self._session.client().transaction()
        paths = [operation.path for operation in operations]
        if holding is not None:
            transaction.check(holding.path, holding.token)
            paths.insert(0, holding.path)
        for operation in operations:
            self._add_operation(transaction, operation)
        asked_at = time.monotonic()
        results = self._session.wait_for_result("commit", transaction.commit_async())
        made = RequestTime(asked_at, time.monotonic())
        self._check_results(paths, results, fenced=holding is not None)
        for stat in results:
            if isinstance(stat, ZnodeStat):
                self._time = LeaderTime(_written_at(stat), made)
        return [getattr(result, "version", None) for result in results[-len(operations) :]]

    def _require_cluster_id(self, root: object, znode: Any) -> str:
        if root is None:
            self._refuse_cluster("the chroot does not exist")
        if znode is None:
            self._refuse_cluster("/cluster/id does not exist")
        identity = znodes.parse_cluster_id(_data(znode))
        if isinstance(identity, Malformed):
            self._refuse_cluster(f"/cluster/id {'has' if identity.unknown_version else 'is'} {identity.content!r}")
        return identity

    def _refuse_cluster(self, text: str) -> NoReturn:
        raise WrongCluster.because(Reason("Z01", f"{self._session.where}: {text}."))

    def _read_live_members(self) -> dict[str, LiveMembers]:
        """migration/ids first: a member that joins meanwhile looks like one that cannot migrate."""
        names = self.children(CONSUMERS)
        migrating = dict(self.children_by_path(f"{CONSUMERS}/{group}/migration/ids" for group in names))
        ids = dict(self.children_by_path(f"{CONSUMERS}/{group}/ids" for group in names))
        members = {}
        for group in names:
            migrating_ids = set(migrating.get(f"{CONSUMERS}/{group}/migration/ids", ()))
            if member_ids := ids.get(f"{CONSUMERS}/{group}/ids"):
                members[group] = LiveMembers(len(set(member_ids) - migrating_ids), len(migrating_ids.intersection(member_ids)))
        for group, age in self._read_unregistered_commits([group for group in names if group not in members]).items():
            members[group] = LiveMembers(0, 0, age)
        return members

    def _read_unregistered_commits(self, groups: Collection[str]) -> Mapping[str, float]:
        """As `find_unregistered_commits`, at most some seconds old: a cluster may have thousands of groups that were left behind."""
        if self._unregistered is None or time.monotonic() - self._unregistered[0] >= _UNREGISTERED_S:
            self._unregistered = (time.monotonic(), find_unregistered_commits(self, groups, time.time()))
        return {group: age for group, age in self._unregistered[1].items() if group in groups}

    def _read_states(self, topics: Collection[TopicMetadata]) -> Mapping[str, Mapping[int, PartitionMetadata]]:
        paths = {_state_path(topic, index): (topic.name, index) for topic in topics for index in topic.partitions}
        states: dict[str, dict[int, PartitionMetadata]] = {topic.name: dict(topic.partitions) for topic in topics}
        for path, znode in self._session.stream("partition states", ReadKind.DATA, paths):
            name, index = paths[path]
            leader, isr, epoch = raise_if_malformed(znodes.parse_partition_state(path, _data(znode)))
            states[name][index] = replace(states[name][index], leader=leader, isr=isr, controller_epoch=epoch)
        return states

    def _add_operation(self, transaction: TransactionRequest, operation: Operation) -> None:
        match operation:
            case Set(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path, version):
                transaction.delete(path, version)
            case Create(path, data, ephemeral, like):
                transaction.create(path, data, acl=self._read_acl(like) if like else self._acl_for_new(path), ephemeral=ephemeral)

    def _read_acl(self, path: str) -> Any:
        acls, _ = self._session.wait_for_result(f"ACL of {path}", self._session.client().get_acls_async(path))
        return acls

    def _acl_for_new(self, path: str) -> Any:
        """Open below a group: consumers write there with their own identities, or none, and a closed znode would stop them.

        Our notes are readable by all, since every view has them; they hold ids, modes and counts.
        """
        if path in {*NOTES, EXPANSION, COUNTS}:
            return [*self._session.acl, *READ_ACL_UNSAFE]
        return OPEN_ACL_UNSAFE if f"{path}/".startswith(f"{CONSUMERS}/") else self._session.acl

    def _check_results(self, paths: Sequence[str], results: Sequence[Any], *, fenced: bool) -> None:
        for position, (path, result) in enumerate(zip(paths, results, strict=True)):
            if not isinstance(result, Exception) or isinstance(result, RolledBackError | RuntimeInconsistency):
                continue
            if fenced and position == 0:
                text = f"{self._session.where}: another run has taken the cluster over ({path} has a newer version)"
                raise Fenced.because(outdated_token(text))
            raise error_for(result, f"{self._session.where}: {path}, nothing was changed")


def _data(data_and_stat: Any) -> bytes:
    """The data of a (data, stat) pair; kazoo gives None for a znode with null data."""
    return data_and_stat[0] or b""


def _written_at(stat: ZnodeStat) -> Written:
    return Written(stat.mtime / 1000, stat.mzxid)


def _state_path(topic: TopicMetadata, partition: int) -> str:
    return f"/brokers/topics/{topic.name}/partitions/{partition}/state"
