"""What a record of the workload says of itself: whose it is, which one of its partition, and when it was sent."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

_HEADER = Struct(">4sBqq")  # magic, length of the producer's name, number, time sent; then the name, then padding
_MAGIC = b"kmw1"


class Content(NamedTuple):
    """`seq` counts the producer's records of this partition from 0; `t_sent_ms` is on its steady clock."""

    producer: str
    seq: int
    t_sent_ms: int


def pack(producer: bytes, seq: int, t_sent_ms: int, size: int) -> bytes:
    """A record's value, padded to `size` bytes."""
    return (_HEADER.pack(_MAGIC, len(producer), seq, t_sent_ms) + producer).ljust(size, b".")


def unpack(value: bytes | None) -> Content | None:
    """None for a record that is not ours."""
    if value is None or len(value) < _HEADER.size:
        return None
    magic, length, seq, t_sent_ms = _HEADER.unpack_from(value)
    if magic != _MAGIC:
        return None
    return Content(_name(value[_HEADER.size : _HEADER.size + length]), seq, t_sent_ms)


@lru_cache(maxsize=256)
def _name(raw: bytes) -> str:
    return raw.decode(errors="replace")
