"""Decodes what brokers write into `__consumer_offsets`: commits, members, and removals.

It is the one witness of consumer groups that needs no change in any client. Formats: OffsetCommitKey 0-1, OffsetCommitValue 0-4,
GroupMetadataKey 2, GroupMetadataValue 0-4 (all that Kafka 0.9 to 4 brokers write for classic groups), and of KIP-848 groups the
epoch, the members and their current assignments; from `group-coordinator/src/main/resources/common/message` of Kafka, checked
against bytes of 3.9.2 brokers and of its own serializers. Other keys (share and streams groups) are recognized and not read.

The bytes (Kafka's serialization, KIP-482) may be anything: every length is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple

from airflow_provider_kmigrate.exceptions import Refused

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class BadRecord(Refused):
    """A record that cannot be read: malformed, or of an unknown version. What it says of its group is unknown."""


class RecordBytes:
    """Reads bytes front to back. `flexible`: lengths are varints, one more than they say; structures end with tagged fields.

    Every method raises `BadRecord`.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.flexible = False

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise BadRecord(f"{size} bytes wanted at {begin} of {len(self._data)}")
        return self._data[begin : self._at]

    def int16(self) -> int:
        """The next two bytes, big-endian and signed, as all of Kafka's fixed-length integers."""
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        """The next four bytes."""
        return int(_INT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        """The next eight bytes."""
        return int(_INT64.unpack(self.take(8))[0])

    def varint(self) -> int:
        """An unsigned varint, of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BadRecord("a varint of more than five bytes")

    def nullable(self) -> str | None:
        """A string, or null."""
        size = self.varint() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise BadRecord(f"no UTF-8: {error.reason}") from error

    def string(self) -> str:
        """A string. Raises `BadRecord` for null."""
        found = self.nullable()
        if found is None:
            raise BadRecord("null where a string must be")
        return found

    def data(self) -> bytes:
        """Bytes with their length before them."""
        return self.take(self.varint() - 1 if self.flexible else self.int32())

    def array(self) -> int:
        """The number of elements that follow: at most the bytes left, so that a damaged length costs no memory."""
        count = self.varint() - 1 if self.flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise BadRecord(f"an array of {count} elements in {len(self._data) - self._at} bytes")
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
            raise BadRecord(f"{len(self._data) - self._at} bytes are left over")


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A group's position in one partition. `leader_epoch` -1 and `expire_ms` None: the record's version has none."""

    group: str
    topic: str
    partition: int
    offset: int
    commit_ms: int
    leader_epoch: int = -1
    metadata: str = ""
    expire_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRemoved:
    """A tombstone: expired, or deleted by a client."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """A classic group after a rebalance; without members it is empty."""

    group: str
    members: int


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A tombstone: the group is dead."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A record that describes a member of a KIP-848 group, or its partitions; not `there`: a tombstone of either."""

    group: str
    member: str
    there: bool = True


@dataclass(frozen=True, slots=True)
class OtherRecord:
    """A record that says nothing of commits and members."""


Record = OffsetCommitted | OffsetRemoved | GroupState | GroupRemoved | ConsumerMember | OtherRecord


class RawRecord(NamedTuple):
    """A record as stored in the topic; `partition` and `offset` are its position there."""

    partition: int
    offset: int
    t_ms: int
    key: bytes | None
    value: bytes | None


def decode(key: bytes | None, value: bytes | None) -> Record:
    """The meaning of one record; no value: a tombstone. Raises `BadRecord`."""
    if key is None:
        raise BadRecord("a record of __consumer_offsets without a key")
    reader = RecordBytes(key)
    read = _KINDS.get(reader.int16())
    return OtherRecord() if read is None else read(reader, None if value is None else RecordBytes(value))


def _version(value: RecordBytes, newest: int, what: str, flexible_from: int) -> int:
    version = value.int16()
    if not 0 <= version <= newest:
        raise BadRecord(f"{what} of version {version}; this release reads versions 0 to {newest}")
    value.flexible = version >= flexible_from
    return version


def _offset(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, topic, partition = key.string(), key.string(), key.int32()
    key.end()
    if value is None:
        return OffsetRemoved(group, topic, partition)
    version = _version(value, 4, "a committed offset", flexible_from=4)
    offset = value.int64()
    leader_epoch = value.int32() if version >= 3 else -1
    metadata, commit_ms = value.string(), value.int64()
    expire_ms = value.int64() if version == 1 else None
    value.end()
    return OffsetCommitted(group, topic, partition, offset, commit_ms, leader_epoch, metadata, expire_ms)


def _group(key: RecordBytes, value: RecordBytes | None) -> Record:
    group = key.string()
    key.end()
    if value is None:
        return GroupRemoved(group)
    version = _version(value, 4, "a group's state", flexible_from=4)
    value.string(), value.int32(), value.nullable(), value.nullable()  # protocol type, generation, protocol, leader
    if version >= 2:
        value.int64()  # since when it is in this state
    members = value.array()
    for _ in range(members):
        _member(value, version)
    value.end()
    return GroupState(group, members)


def _member(value: RecordBytes, version: int) -> None:
    value.string()  # its id
    if version >= 3:
        value.nullable()  # instance id
    value.string(), value.string()  # client id, host
    if version >= 1:
        value.int32()  # rebalance timeout
    value.int32()  # session timeout
    value.data(), value.data()  # subscription and assignment: a client wrote these bytes
    value.end_struct()


def _consumer_group(key: RecordBytes, value: RecordBytes | None) -> Record:
    group = key.string()
    key.end()
    if value is None:
        return GroupRemoved(group)
    _version(value, 0, "a consumer group's epoch", flexible_from=0)
    value.int32()  # epoch
    value.end()
    return OtherRecord()


def _consumer_member(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, member = key.string(), key.string()
    key.end()
    if value is None:
        return ConsumerMember(group, member, there=False)
    _version(value, 0, "a consumer group's member", flexible_from=0)
    value.nullable(), value.nullable(), value.string(), value.string()  # instance id, rack, client id, host
    for _ in range(value.array()):
        value.string()  # a topic
    value.nullable()  # the pattern it subscribes to
    value.int32()  # rebalance timeout
    value.nullable()  # assignor
    value.end()
    return ConsumerMember(group, member)


def _consumer_assignment(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, member = key.string(), key.string()
    key.end()
    if value is None:
        return ConsumerMember(group, member, there=False)
    _version(value, 0, "a member's assignment", flexible_from=0)
    value.take(9)  # epoch, previous epoch and state
    for _ in ("owned", "pending"):
        for _ in range(value.array()):
            _topic_partitions(value)
    value.end()
    return ConsumerMember(group, member)


def _topic_partitions(value: RecordBytes) -> None:
    value.take(16)  # topic id
    for _ in range(value.array()):
        value.int32()
    value.end_struct()


_KINDS: Final[Mapping[int, Callable[[RecordBytes, RecordBytes | None], Record]]] = MappingProxyType(
    {0: _offset, 1: _offset, 2: _group, 3: _consumer_group, 5: _consumer_member, 8: _consumer_assignment}
)
