"""What clients ask of brokers, request by request: a proxy before each broker that reads along and changes nothing.

Only requests of the classic group protocol are taken apart, in the versions that librdkafka sends (KIP-482's from OffsetCommit 8 on).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self


class Api(IntEnum):
    """Kafka's api keys."""

    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One of a group member. `offsets`: partition -> committed offset; `given`: members in a leader's SyncGroup."""

    at: float
    api: Api
    client: str
    generation: int = -1
    member: str = ""
    offsets: dict[int, int] = field(default_factory=dict)
    given: tuple[str, ...] = ()


class _Body:
    """A request's fields, one after another."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data, self._at, self.flexible = data, 0, flexible

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(value)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def length(self, form: str) -> int:
        return self._varint() - 1 if self.flexible else self.number(form)

    def text(self) -> str:
        return self._take(self.length("h"))

    def blob(self) -> None:
        self._take(self.length("i"))

    def _take(self, count: int) -> str:
        found = self._data[self._at : self._at + max(count, 0)]
        self._at += len(found)
        return found.decode(errors="replace")

    def tags(self) -> None:
        if self.flexible:
            assert self._varint() == 0, "no client sends tagged fields here"


def read(frame: bytes, at: float) -> WireRequest | None:
    """A request without its size; None: not a group member's."""
    body = _Body(frame)
    api, version, _ = body.number("h"), body.number("h"), body.number("i")
    client = body.text()
    if api not in set(Api):
        return None
    body.flexible = api == Api.OFFSET_COMMIT and version >= 8
    body.tags()
    return _READ[Api(api)](body, version, WireRequest(at, Api(api), client))


def _as_sent(_: _Body, __: int, request: WireRequest) -> WireRequest:
    return request


def _join(body: _Body, version: int, request: WireRequest) -> WireRequest:
    body.text()
    body.number("i")
    if version >= 1:
        body.number("i")
    return WireRequest(request.at, request.api, request.client, member=body.text())


def _heartbeat(body: _Body, _: int, request: WireRequest) -> WireRequest:
    body.text()
    generation = body.number("i")
    return WireRequest(request.at, request.api, request.client, generation, body.text())


def _leave(body: _Body, version: int, request: WireRequest) -> WireRequest:
    body.text()
    if version >= 3:
        body.number("i")
    return WireRequest(request.at, request.api, request.client, member=body.text())


def _sync(body: _Body, version: int, request: WireRequest) -> WireRequest:
    reported = _heartbeat(body, version, request)
    if version >= 3:
        body.text()
    given = []
    for _ in range(body.number("i")):
        given.append(body.text())
        body.blob()
    return WireRequest(reported.at, reported.api, reported.client, reported.generation, reported.member, given=tuple(given))


def _commit(body: _Body, version: int, request: WireRequest) -> WireRequest:
    reported = _heartbeat(body, version, request)
    if version >= 7:
        body.text()
    if version <= 4:
        body.number("q")
    offsets = {}
    for _ in range(body.length("i")):
        body.text()
        for _ in range(body.length("i")):
            partition = body.number("i")
            offsets[partition] = body.number("q")
            if version >= 6:
                body.number("i")
            body.text()
            body.tags()
        body.tags()
    return WireRequest(reported.at, reported.api, reported.client, reported.generation, reported.member, offsets)


_READ: dict[Api, Callable[[_Body, int, WireRequest], WireRequest]] = {
    Api.OFFSET_COMMIT: _commit,
    Api.OFFSET_FETCH: _as_sent,
    Api.FIND_COORDINATOR: _as_sent,
    Api.JOIN_GROUP: _join,
    Api.HEARTBEAT: _heartbeat,
    Api.LEAVE_GROUP: _leave,
    Api.SYNC_GROUP: _sync,
}


class WireLog:
    """Stands before one broker. `requests` grows; while `hears` is clear, what clients send is kept back and connections stay open."""

    def __init__(self, upstream: tuple[str, int], requests: list[WireRequest]) -> None:
        self._upstream, self._requests = upstream, requests
        self.hears = threading.Event()
        self.hears.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hears.set()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self._upstream)
        except OSError:  # the broker is down
            client.close()
            return
        self._sockets += [client, broker]
        for one in (client, broker):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._there, args=(client, broker), daemon=True).start()
        threading.Thread(target=self._back, args=(broker, client), daemon=True).start()

    def _there(self, client: socket.socket, broker: socket.socket) -> None:
        """Whole requests; each is written down before the broker has it."""
        with _both(client, broker), client.makefile("rb") as sent:
            while size := sent.read(4):
                frame = sent.read(int.from_bytes(size, "big"))
                self.hears.wait()
                request = read(frame, time.monotonic())
                if request is not None:
                    self._requests.append(request)
                broker.sendall(size + frame)

    def _back(self, broker: socket.socket, client: socket.socket) -> None:
        with _both(broker, client):
            while data := broker.recv(65536):
                client.sendall(data)


@contextlib.contextmanager
def _both(*sockets: socket.socket) -> Iterator[None]:
    """When one side ends, the other does."""
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
