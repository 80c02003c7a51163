"""A ZooKeeper server of a few words on a real socket, for a real client: what it answers is a test's to say.

It grants a session and answers pings, logins, and reads: there is no such znode. A sync is answered once it has a leader.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from types import TracebackType
from typing import Final, Self

READ: Final = 4
SYNC: Final = 9
AUTH: Final = 100
_NO_NODE: Final = -101
_AUTH_FAILED: Final = -115


class WireZooKeeper:
    """For one client at a time. `asked`: the operations that came; `credentials`: what it was authenticated with."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, knows: bool = True) -> None:
        """`knows`: it accepts logins."""
        self._tls, self._knows = tls, knows
        self.leader = threading.Event()
        self.asked: list[int] = []
        self.credentials: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10.0)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with client, contextlib.suppress(EOFError, ConnectionError, ssl.SSLError):
                    self._talk(self._tls.wrap_socket(client, server_side=True) if self._tls else client)

    def _talk(self, client: socket.socket) -> None:
        hello = _packet(client)
        (timeout,) = struct.unpack_from(">i", hello, 12)
        _send(client, struct.pack(">iiqi", 0, timeout, 0x1234, 16) + bytes(16) + b"\0")
        while True:
            packet = _packet(client)
            number, operation = struct.unpack_from(">ii", packet)
            self.asked.append(operation)
            if operation == AUTH:
                self.credentials.append(packet[8:])
            if operation == SYNC:
                self.leader.wait(30.0)
            errors = {READ: _NO_NODE, AUTH: 0 if self._knows else _AUTH_FAILED}
            _send(client, struct.pack(">iqi", number, 1, errors.get(operation, 0)) + _body(operation))


def _body(operation: int) -> bytes:
    return struct.pack(">i", 1) + b"/" if operation == SYNC else b""


def _packet(client: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(client, 4))
    return _exactly(client, size)


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = client.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _send(client: socket.socket, data: bytes) -> None:
    client.sendall(struct.pack(">i", len(data)) + data)
