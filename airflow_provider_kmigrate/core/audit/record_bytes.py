"""Kafka's serialization of records (KIP-482), read from bytes that may be anything: every length is checked before it is used."""

from __future__ import annotations

from struct import Struct
from typing import Final

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class MalformedBytes(ValueError):
    """Too short, too long, or a length that cannot be."""


class RecordBytes:
    """Reads from front to back. `flexible`: lengths are varints, one more than they say, and structures end with tagged fields.

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
        """An unsigned one, of at most five bytes."""
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
        """How many elements follow: no more than there are bytes left, so that a damaged length costs no memory."""
        count = self.varint() - 1 if self.flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise MalformedBytes(f"an array of {count} elements in {len(self._data) - self._at} bytes")
        return count

    def end_struct(self) -> None:
        """The end of a structure: tagged fields, which newer brokers add, are passed over."""
        if self.flexible:
            for _ in range(self.varint()):
                self.varint()
                self.take(self.varint())

    def end(self) -> None:
        """The end of everything."""
        self.end_struct()
        if self._at != len(self._data):
            raise MalformedBytes(f"{len(self._data) - self._at} bytes are left over")
