"""A node of our own for the wire client's tests: real TCP, real frames, answers chosen by the test."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeQuorumRequest,
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    ListConfigResourcesRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from airflow_provider_kmigrate.clients.messages import ConsumerGroupDescribeRequest, DescribeDelegationTokenRequest

#: An answer object, raw bytes to send as they are, an iterator of such, HANG or CLOSE.
Answer = Any
HANG = object()
CLOSE = object()

REQUESTS = {
    request.API_KEY: request
    for request in (
        ApiVersionsRequest,
        ConsumerGroupDescribeRequest,
        CreatePartitionsRequest,
        DeleteGroupsRequest,
        DescribeAclsRequest,
        DescribeClientQuotasRequest,
        DescribeClusterRequest,
        DescribeConfigsRequest,
        DescribeDelegationTokenRequest,
        DescribeGroupsRequest,
        DescribeQuorumRequest,
        DescribeUserScramCredentialsRequest,
        ElectLeadersRequest,
        FindCoordinatorRequest,
        ListConfigResourcesRequest,
        ListGroupsRequest,
        ListOffsetsRequest,
        ListTransactionsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        SaslHandshakeRequest,
        SaslAuthenticateRequest,
    )
}

#: What a Kafka 3.9 broker in KRaft mode serves of the requests used here.
KRAFT = {
    3: (0, 12),
    10: (0, 6),
    15: (0, 5),
    16: (0, 5),
    17: (0, 1),
    18: (0, 4),
    32: (1, 4),
    36: (0, 2),
    55: (0, 2),
    60: (0, 1),
    74: (0, 0),
}
ZOOKEEPER = {key: versions for key, versions in KRAFT.items() if key not in {55, 74}}


def api_versions(keys: Mapping[int, tuple[int, int]] = KRAFT, **fields: Any) -> Callable[[Any], ApiVersionsResponse]:
    """A handler that answers ApiVersions in the version that was asked."""
    entry = ApiVersionsResponse.ApiVersion

    def answer(request: Any) -> ApiVersionsResponse:
        listed = [entry(api_key=key, min_version=low, max_version=high) for key, (low, high) in keys.items()]
        return ApiVersionsResponse(version=request.API_VERSION, error_code=0, api_keys=listed, **fields)

    return answer


class FakeNode:
    """Listens on 127.0.0.1; `handlers` maps an api key to an answer or to a function of the decoded request."""

    def __init__(self, handlers: Mapping[int, Answer] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.handlers: dict[int, Answer] = {18: api_versions(), **(handlers or {})}
        self.seen: list[Any] = []  # decoded requests, in order
        self.connections = 0
        self._tls = tls
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        self._thread.join(5)

    def drop_connections(self) -> None:
        """Close every open connection, as a restart or the idle limit does."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def keys_seen(self) -> list[int]:
        return [request.API_KEY for request in self.seen]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.connections += 1
                self._open.append(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            stream = self._tls.wrap_socket(peer, server_side=True) if self._tls else peer
            while self._answer(stream):
                pass
        peer.close()

    def _answer(self, stream: socket.socket) -> bool:
        (size,) = struct.unpack(">i", _read(stream, 4))
        frame = _read(stream, size)
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        request = REQUESTS[key].decode(frame, version=version, header=True)
        request.API_VERSION = version
        self.seen.append(request)
        answer = self.handlers[key]
        answer = answer(request) if callable(answer) else answer
        if answer is CLOSE:
            return False
        if answer is HANG:
            return True
        for chunk in answer if isinstance(answer, Iterator) else [answer]:
            stream.sendall(chunk if isinstance(chunk, bytes) else _frame(chunk, version, correlation_id))
        return True


def _frame(answer: Any, version: int, correlation_id: int) -> bytes:
    if answer.API_VERSION is None:
        answer.API_VERSION = version
    answer.with_header(correlation_id=correlation_id)
    return bytes(answer.encode(framed=True, header=True))


def _read(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = stream.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
