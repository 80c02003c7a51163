"""One socket to one node, one request at a time: framing, correlation ids and deadlines.

Requests and answers are kafka-python's protocol classes; nothing else of that library runs. A connection on which anything went
wrong is out of step and must be dropped: the caller (`Wire`) does.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.metadata import ApiVersionsRequest

from airflow_provider_kmigrate.clients.kafka_errors import UNSUPPORTED_VERSION, check
from airflow_provider_kmigrate.clients.settings import WireSecurity
from airflow_provider_kmigrate.clients.wire_security import authenticate
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, TimedOut, Unreachable

_CLIENT = "kmigrate"
_MAX_FRAME = 256 * 1024 * 1024  # bytes; metadata of 50,000 partitions takes 2 MB
_RECEIVE = 1 << 18
#: Reasons in OpenSSL's words that mean "your certificate" and not "the connection".
_TLS_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "DECRYPT_ERROR")


class Deadline:
    """One budget of seconds for everything that a call does."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds that are left; raises TimeoutError when none are."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


@contextlib.contextmanager
def map_errors(where: str, deadline: Deadline) -> Iterator[None]:
    """The one place where errors of socket and TLS become ours."""
    try:
        yield
    except TimeoutError as error:
        raise TimedOut(f"{where}: no answer within {deadline.seconds:g} s") from error
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(f"{where}: its certificate is not accepted: {error.verify_message}") from error
    except ssl.SSLError as error:
        refused = any(word in (error.reason or "") for word in _TLS_REFUSALS)
        raise (AuthenticationFailed if refused else Unreachable)(f"{where}: TLS failed: {error.reason or error}") from error
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{where}: {error}") from error


class Connection:
    """Connected, negotiated and authenticated after construction; `keys` is what the node serves: api key -> (min, max)."""

    def __init__(self, host: str, port: int, security: WireSecurity, tls: ssl.SSLContext | None, deadline: Deadline) -> None:
        self.where = f"{host}:{port}"
        self._ids = itertools.count(1)
        with map_errors(f"{self.where} connect", deadline):
            self._socket = _connect(host, port, tls, deadline)
        try:
            self.keys = api_keys(self.api_versions(deadline))
            authenticate(lambda request: self.call(request, deadline), security, self.where)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Send one request and return its decoded answer; error codes inside the answer are the caller's business."""
        where = f"{self.where} {request.name.removesuffix('Request')}"
        correlation_id = next(self._ids)
        request.with_header(correlation_id=correlation_id, client_id=_CLIENT)
        with map_errors(where, deadline):
            self._send(bytes(request.encode(framed=True, header=True)), deadline)
            frame = self._receive_frame(where, deadline)
        return _decode(request, frame, correlation_id, where)

    def api_versions(self, deadline: Deadline) -> Any:
        """ApiVersions v3 with our name (KIP-511); nodes before Kafka 2.4 answer v0, which has neither features nor tags."""
        answer = self.call(
            ApiVersionsRequest(client_software_name=_CLIENT, client_software_version="1", version=3),
            deadline,
        )
        if answer.error_code == UNSUPPORTED_VERSION:
            answer = self.call(ApiVersionsRequest(version=0), deadline)
        check(answer.error_code, f"{self.where} ApiVersions")
        return answer

    def version_of(self, request: Any, lowest: int, highest: int) -> int:
        """The newest version that both sides speak; raises Failed where there is none."""
        name, served = request.name.removesuffix("Request"), self.keys.get(request.API_KEY)
        if served is None:
            raise Failed(f"{self.where} does not serve {name} (api key {request.API_KEY})")
        version = min(highest, served[1])
        if version < max(lowest, served[0]):
            raise Failed(f"{self.where} serves {name} v{served[0]}-v{served[1]}, we speak v{lowest}-v{highest}")
        return version

    def _send(self, data: bytes, deadline: Deadline) -> None:
        self._socket.settimeout(deadline.left())
        self._socket.sendall(data)

    def _receive_frame(self, where: str, deadline: Deadline) -> bytearray:
        (size,) = struct.unpack(">i", self._receive(4, deadline))
        if not 4 <= size <= _MAX_FRAME:  # a TLS or HTTP port, most often
            raise Unreachable(f"{where}: a frame of {size} bytes is not Kafka's protocol")
        return self._receive(size, deadline)

    def _receive(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(deadline.left())
            chunk = self._socket.recv(min(size - len(data), _RECEIVE))
            if not chunk:
                raise ConnectionResetError("the node closed the connection")
            data += chunk
        return data


def api_keys(answer: Any) -> Mapping[int, tuple[int, int]]:
    """ApiVersions' list as a mapping: api key -> (min, max)."""
    return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}


def _connect(host: str, port: int, tls: ssl.SSLContext | None, deadline: Deadline) -> socket.socket:
    """The first address of `host` that answers; unlike `create_connection`, all addresses share one deadline."""
    refused: OSError = ConnectionRefusedError(f"no address for {host}")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        raw = socket.socket(family, kind, protocol)
        try:
            return _dial(raw, address, host, tls, deadline)
        except TimeoutError:
            raw.close()
            raise
        except OSError as error:
            raw.close()
            refused = error
    raise refused


def _dial(raw: socket.socket, address: Any, host: str, tls: ssl.SSLContext | None, deadline: Deadline) -> socket.socket:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.settimeout(deadline.left())
    raw.connect(address)
    if tls is None:
        return raw
    raw.settimeout(deadline.left())
    return tls.wrap_socket(raw, server_hostname=host)


def _decode(request: Any, frame: bytearray, correlation_id: int, where: str) -> Any:
    (answered,) = struct.unpack_from(">i", frame)
    if answered != correlation_id:
        raise Unreachable(f"{where}: answer {answered} to request {correlation_id}; the connection is out of step")
    answer = ResponseClassRegistry.get_response_class(request.header)
    try:
        return answer.decode(bytes(frame), version=request.API_VERSION, header=True)
    except Exception as error:  # the decoder raises whatever a wrong byte leads it to
        raise Unreachable(f"{where}: the answer is not Kafka's protocol ({type(error).__name__})") from error
