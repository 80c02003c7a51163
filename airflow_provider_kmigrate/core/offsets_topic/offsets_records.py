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

from airflow_provider_kmigrate.core.shared.text import count_of
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

    def read_int16(self) -> int:
        """The next two bytes, big-endian and signed, as all of Kafka's fixed-length integers."""
        return int(_INT16.unpack(self.take(2))[0])

    def read_int32(self) -> int:
        """The next four bytes."""
        return int(_INT32.unpack(self.take(4))[0])

    def read_int64(self) -> int:
        """The next eight bytes."""
        return int(_INT64.unpack(self.take(8))[0])

    def read_varint(self) -> int:
        """An unsigned varint, of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BadRecord("a varint of more than five bytes")

    def read_nullable_string(self) -> str | None:
        """A string, or null."""
        size = self.read_varint() - 1 if self.flexible else self.read_int16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise BadRecord(f"no UTF-8: {error.reason}") from error

    def read_string(self) -> str:
        """A string. Raises `BadRecord` for null."""
        text = self.read_nullable_string()
        if text is None:
            raise BadRecord("null where a string must be")
        return text

    def read_bytes(self) -> bytes:
        """Bytes with their length before them."""
        return self.take(self.read_varint() - 1 if self.flexible else self.read_int32())

    def read_array_size(self) -> int:
        """The number of elements that follow: at most the bytes left, so that a damaged length costs no memory."""
        count = self.read_varint() - 1 if self.flexible else self.read_int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise BadRecord(f"an array of {count_of(count, 'element')} in {len(self._data) - self._at} bytes")
        return count

    def end_struct(self) -> None:
        """The end of a structure: tagged fields, which newer brokers add, are skipped."""
        if self.flexible:
            for _ in range(self.read_varint()):
                self.read_varint()
                self.take(self.read_varint())

    def check_end(self) -> None:
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


def decode_record(key: bytes | None, value: bytes | None) -> Record:
    """The meaning of one record; no value: a tombstone. Raises `BadRecord`."""
    if key is None:
        raise BadRecord("a record of __consumer_offsets without a key")
    reader = RecordBytes(key)
    decode_kind = _KINDS.get(reader.read_int16())
    return OtherRecord() if decode_kind is None else decode_kind(reader, None if value is None else RecordBytes(value))


def _read_version(value: RecordBytes, newest: int, what: str, flexible_from: int) -> int:
    version = value.read_int16()
    if not 0 <= version <= newest:
        raise BadRecord(f"{what} of version {version}; this release reads versions 0 to {newest}")
    value.flexible = version >= flexible_from
    return version


def _decode_offset(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, topic, partition = key.read_string(), key.read_string(), key.read_int32()
    key.check_end()
    if value is None:
        return OffsetRemoved(group, topic, partition)
    version = _read_version(value, 4, "a committed offset", flexible_from=4)
    offset = value.read_int64()
    leader_epoch = value.read_int32() if version >= 3 else -1
    metadata, commit_ms = value.read_string(), value.read_int64()
    expire_ms = value.read_int64() if version == 1 else None
    value.check_end()
    return OffsetCommitted(group, topic, partition, offset, commit_ms, leader_epoch, metadata, expire_ms)


def _decode_group(key: RecordBytes, value: RecordBytes | None) -> Record:
    group = key.read_string()
    key.check_end()
    if value is None:
        return GroupRemoved(group)
    version = _read_version(value, 4, "a group's state", flexible_from=4)
    (
        value.read_string(),
        value.read_int32(),
        value.read_nullable_string(),
        value.read_nullable_string(),
    )  # protocol type, generation, protocol, leader
    if version >= 2:
        value.read_int64()  # since when it is in this state
    members = value.read_array_size()
    for _ in range(members):
        _skip_member(value, version)
    value.check_end()
    return GroupState(group, members)


def _skip_member(value: RecordBytes, version: int) -> None:
    value.read_string()  # its id
    if version >= 3:
        value.read_nullable_string()  # instance id
    value.read_string(), value.read_string()  # client id, host
    if version >= 1:
        value.read_int32()  # rebalance timeout
    value.read_int32()  # session timeout
    value.read_bytes(), value.read_bytes()  # subscription and assignment: a client wrote these bytes
    value.end_struct()


def _decode_consumer_group(key: RecordBytes, value: RecordBytes | None) -> Record:
    group = key.read_string()
    key.check_end()
    if value is None:
        return GroupRemoved(group)
    _read_version(value, 0, "a consumer group's epoch", flexible_from=0)
    value.read_int32()  # epoch
    value.check_end()
    return OtherRecord()


def _decode_consumer_member(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, member = key.read_string(), key.read_string()
    key.check_end()
    if value is None:
        return ConsumerMember(group, member, there=False)
    _read_version(value, 0, "a consumer group's member", flexible_from=0)
    (
        value.read_nullable_string(),
        value.read_nullable_string(),
        value.read_string(),
        value.read_string(),
    )  # instance id, rack, client id, host
    for _ in range(value.read_array_size()):
        value.read_string()  # a topic
    value.read_nullable_string()  # the pattern it subscribes to
    value.read_int32()  # rebalance timeout
    value.read_nullable_string()  # assignor
    value.check_end()
    return ConsumerMember(group, member)


def _decode_consumer_assignment(key: RecordBytes, value: RecordBytes | None) -> Record:
    group, member = key.read_string(), key.read_string()
    key.check_end()
    if value is None:
        return ConsumerMember(group, member, there=False)
    _read_version(value, 0, "a member's assignment", flexible_from=0)
    value.take(9)  # epoch, previous epoch and state
    for _ in ("owned", "pending"):
        for _ in range(value.read_array_size()):
            _skip_topic_partitions(value)
    value.check_end()
    return ConsumerMember(group, member)


def _skip_topic_partitions(value: RecordBytes) -> None:
    value.take(16)  # topic id
    for _ in range(value.read_array_size()):
        value.read_int32()
    value.end_struct()


_KINDS: Final[Mapping[int, Callable[[RecordBytes, RecordBytes | None], Record]]] = MappingProxyType(
    {
        0: _decode_offset,
        1: _decode_offset,
        2: _decode_group,
        3: _decode_consumer_group,
        5: _decode_consumer_member,
        8: _decode_consumer_assignment,
    }
)
