"""Commits as clients made them that kept their offsets in ZooKeeper without joining a group: OffsetCommit version 0, byte by byte."""

from __future__ import annotations

import socket
import struct

from airflow_provider_kmigrate.core.events.model import TopicPartition

_OFFSET_COMMIT = 8
UNSUPPORTED_VERSION = 35  # Kafka's `Errors`


def commit_version_0(address: str, group: str, where: TopicPartition, offset: int) -> int:
    """The error code of a broker's answer, 0 for none; `address` is HOST:PORT."""
    partition = struct.pack(">iq", where.partition, offset) + _string("")
    body = _string(group) + struct.pack(">i", 1) + _string(where.topic) + struct.pack(">i", 1) + partition
    request = struct.pack(">hhi", _OFFSET_COMMIT, 0, 1) + _string("an old binding") + body
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20.0) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", answers.read(4))
        answer = answers.read(length)
    (error,) = struct.unpack(">h", answer[-2:])
    return int(error)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()
