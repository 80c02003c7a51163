"""Decodes what brokers write into `__consumer_offsets`: commits, generations, members, and removals.

It is the one witness of consumer groups that needs no change in any client. Formats: OffsetCommitKey 0-1, OffsetCommitValue 0-4,
GroupMetadataKey 2, GroupMetadataValue 0-4 (all that Kafka 0.9 to 4 brokers write for classic groups), and of KIP-848 groups the
epoch, the members and their current assignments; from `group-coordinator/src/main/resources/common/message` of Kafka, checked
against bytes of 3.9.2 brokers and of its own serializers. Other keys (share and streams groups) are recognized and not read.

The bytes (Kafka's serialization, KIP-482) may be anything: every length is checked before it is used. A record that cannot be
read says nothing about its group: `Scan` counts it, keeps the first few and continues.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.exceptions import Refused

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class MalformedBytes(ValueError):
    """Too short, too long, or with an impossible length."""


class RecordBytes:
    """Reads bytes front to back. `flexible`: lengths are varints, one more than they say; structures end with tagged fields.

    Every method raises `MalformedBytes`.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.flexible = False

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise MalformedBytes(f"{size} bytes wanted at {begin} of {len(self._data)}")
        return self._data[begin : self._at]

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.take(8))[0])

    def varint(self) -> int:
        """An unsigned varint, of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedBytes("a varint of more than five bytes")

    def nullable(self) -> str | None:
        """A string, or null."""
        size = self.varint() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedBytes(f"no UTF-8: {error.reason}") from error

    def string(self) -> str:
        found = self.nullable()
        if found is None:
            raise MalformedBytes("null where a string must be")
        return found

    def data(self) -> bytes:
        """Bytes with their length before them."""
        return self.take(self.varint() - 1 if self.flexible else self.int32())

    def array(self) -> int:
        """The number of elements that follow: at most the bytes left, so that a damaged length costs no memory."""
        count = self.varint() - 1 if self.flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise MalformedBytes(f"an array of {count} elements in {len(self._data) - self._at} bytes")
        return count

    def end_struct(self) -> None:
        """The end of a structure: tagged fields, which newer brokers add, are skipped."""
        if self.flexible:
            for _ in range(self.varint()):
                self.varint()
                self.take(self.varint())

    def end(self) -> None:
        """The end of all bytes."""
        self.end_struct()
        if self._at != len(self._data):
            raise MalformedBytes(f"{len(self._data) - self._at} bytes are left over")


_KEPT = 20  # examples of what could not be read


class BadRecord(Refused):
    """A record that cannot be read; what it says of its group is unknown."""


class MalformedRecord(BadRecord):
    """Not as its own version number requires: cut short, too long, or with an impossible length."""


class UnknownRecord(BadRecord):
    """A record of a kind or a version that this release does not read."""


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A group's position in one partition. `leader_epoch`: of the last record consumed, if the client sent it (version 3)."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    commit_ms: int
    expire_ms: int | None = None  # version 1 only; later ones expire by the group's state


@dataclass(frozen=True, slots=True)
class OffsetRemoved:
    """A tombstone: expired, or deleted by a client."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a generation. `assignment` None: not of the consumer protocol (Connect), or unreadable."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    assignment: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class GroupState:
    """A classic group after a rebalance; without members it is empty. `since_ms`: when it came into this state (version 2)."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int | None
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A tombstone: the group is dead. `classic`: of the classic protocol, else of KIP-848."""

    group: str
    classic: bool = True


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A KIP-848 group has a new epoch."""

    group: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a KIP-848 group as it described itself."""

    group: str
    member: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConsumerAssignment:
    """The partitions that a member of a KIP-848 group owns at `epoch`: (topic id in base64, partitions)."""

    group: str
    member: str
    epoch: int
    partitions: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMemberRemoved:
    """A tombstone of a member, or of its assignment, in a KIP-848 group."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class OtherRecord:
    """A record that is not read further: `key_type` is Kafka's number of its kind."""

    key_type: int


Record = (
    OffsetCommitted
    | OffsetRemoved
    | GroupState
    | GroupRemoved
    | ConsumerGroup
    | ConsumerMember
    | ConsumerAssignment
    | ConsumerMemberRemoved
    | OtherRecord
)


class RawRecord(NamedTuple):
    """A record as stored in the topic; `partition` and `offset` are its position there."""

    partition: int
    offset: int
    t_ms: int
    key: bytes | None
    value: bytes | None


def decode(key: bytes | None, value: bytes | None) -> Record:
    """The meaning of one record; no value: a tombstone. Raises `MalformedRecord` or `UnknownRecord`."""
    if key is None:
        raise MalformedRecord("a record of __consumer_offsets without a key")
    try:
        reader = RecordBytes(key)
        kind = reader.int16()
        read = _KINDS.get(kind)
        if read is None:
            return OtherRecord(kind)
        found = read(reader, None if value is None else RecordBytes(value))
    except MalformedBytes as error:
        raise MalformedRecord(f"a record of __consumer_offsets is malformed: {error}") from error
    return found


def _version(value: RecordBytes, newest: int, what: str, flexible_from: int) -> int:
    version = value.int16()
    if not 0 <= version <= newest:
        raise UnknownRecord(f"{what} of version {version}; this release reads versions 0 to {newest}")
    value.flexible = version >= flexible_from
    return version


def _offset(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, topic, partition = key.string(), key.string(), key.int32()
    key.end()
    if value is None:
        return OffsetRemoved(group, topic, partition)
    version = _version(value, 4, "a committed offset", flexible_from=4)
    offset = value.int64()
    epoch = value.int32() if version >= 3 else -1
    metadata, commit_ms = value.string(), value.int64()
    expire_ms = value.int64() if version == 1 else -1
    value.end()
    return OffsetCommitted(group, topic, partition, offset, _known(epoch), metadata, commit_ms, _known(expire_ms))


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _group(key: RecordBytes, value: RecordBytes | None) -> Record:
    group = key.string()
    key.end()
    if value is None:
        return GroupRemoved(group)
    version = _version(value, 4, "a group's state", flexible_from=4)
    kind, generation, protocol, leader = value.string(), value.int32(), value.nullable(), value.nullable()
    since_ms = value.int64() if version >= 2 else -1
    members = tuple(_member(value, version, kind) for _ in range(value.array()))
    value.end()
    return GroupState(group, kind, generation, protocol, leader, _known(since_ms), members)


def _member(value: RecordBytes, version: int, protocol_type: str) -> GroupMember:
    name = value.string()
    instance = value.nullable() if version >= 3 else None
    client, host = value.string(), value.string()
    if version >= 1:
        value.int32()  # rebalance timeout
    session = value.int32()
    _subscription, assignment = value.data(), value.data()
    value.end_struct()
    owned = _assignment(assignment) if protocol_type == "consumer" else None
    return GroupMember(name, instance, client, host, session, owned)


def _assignment(data: bytes) -> tuple[TopicPartition, ...] | None:
    """A client wrote these bytes, not a broker (ConsumerProtocolAssignment): an unreadable one affects nothing else."""
    if not data:
        return ()  # a member without partitions
    try:
        reader = RecordBytes(data)
        reader.int16()
        topics = [(reader.string(), [reader.int32() for _ in range(reader.array())]) for _ in range(reader.array())]
    except MalformedBytes:
        return None
    return tuple(TopicPartition(topic, partition) for topic, partitions in topics for partition in partitions)


def _consumer_group(key: RecordBytes, value: RecordBytes | None) -> Record:
    group = key.string()
    key.end()
    if value is None:
        return GroupRemoved(group, classic=False)
    _version(value, 0, "a consumer group's epoch", flexible_from=0)
    epoch = value.int32()
    value.end()
    return ConsumerGroup(group, epoch)


def _consumer_member(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, member = key.string(), key.string()
    key.end()
    if value is None:
        return ConsumerMemberRemoved(group, member)
    _version(value, 0, "a consumer group's member", flexible_from=0)
    instance, _rack, client, host = value.nullable(), value.nullable(), value.string(), value.string()
    topics = tuple(value.string() for _ in range(value.array()))
    value.nullable()  # the pattern it subscribes to
    value.int32()  # rebalance timeout
    value.nullable()  # assignor
    value.end()
    return ConsumerMember(group, member, instance, client, host, topics)


def _consumer_assignment(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, member = key.string(), key.string()
    key.end()
    if value is None:
        return ConsumerMemberRemoved(group, member)
    _version(value, 0, "a member's assignment", flexible_from=0)
    epoch = value.int32()
    value.take(5)  # previous epoch and state
    owned, _pending = _topic_ids(value), _topic_ids(value)
    value.end()
    return ConsumerAssignment(group, member, epoch, owned)


def _topic_ids(value: RecordBytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(_topic_id(value) for _ in range(value.array()))


def _topic_id(value: RecordBytes) -> tuple[str, tuple[int, ...]]:
    topic = urlsafe_b64encode(value.take(16)).decode().rstrip("=")
    partitions = tuple(value.int32() for _ in range(value.array()))
    value.end_struct()
    return topic, partitions


_KINDS: Final[Mapping[int, Callable[[RecordBytes, RecordBytes | None], Record]]] = MappingProxyType(
    {0: _offset, 1: _offset, 2: _group, 3: _consumer_group, 5: _consumer_member, 8: _consumer_assignment}
)


@dataclass(slots=True)
class Scan:
    """One reading of the topic. `kinds` counts read records, `refused` unreadable ones; `examples` are the first of those."""

    kinds: Counter[type[Record]] = field(default_factory=Counter)
    refused: int = 0
    examples: list[str] = field(default_factory=list)

    def read(self, raw: RawRecord) -> Record | None:
        """The decoded record; None if it is counted as refused."""
        try:
            record = decode(raw.key, raw.value)
        except BadRecord as error:
            self.refused += 1
            if len(self.examples) < _KEPT:
                self.examples.append(f"__consumer_offsets-{raw.partition} offset {raw.offset}: {error}")
            return None
        self.kinds[type(record)] += 1
        return record

    def read_all(self, raws: Iterable[RawRecord]) -> Iterator[tuple[RawRecord, Record]]:
        """The records that could be read."""
        for raw in raws:
            record = self.read(raw)
            if record is not None:
                yield raw, record
