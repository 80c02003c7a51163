"""One kazoo session: opened on demand, bounded in everything, its errors made ours in one place; with batched reads.

kazoo misses multiRead (opcode of ZooKeeper 3.6), which `MultiRead` adds. The server answers it at one instant, so znodes that
Kafka changes together are seen together. It is also some 15 times faster than single requests for the 50,000 partition states of
a large cluster (measured).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import KeeperState, ZnodeStat
from kazoo.retry import ForceRetryError, RetryFailedError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_digest_acl_credential
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.tls import tls_context
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.clients.zookeeper_sasl import LastWarning, explain_login, guard_login, sasl_options
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.text import summarize
from airflow_provider_kmigrate.exceptions import (
    AuthenticationFailed,
    Failed,
    KMigrateError,
    TimedOut,
    Unavailable,
    Unreachable,
)

_NO_WATCH = b"\0"
_FAILED = -1  # the kind of an answer that is an error
_LARGEST: Final = 16 << 20  # bytes of an answer; the children of 50,000 topics take 2 MB
_SENSELESS = (
    struct.error,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
)  # what other bytes than ZooKeeper's lead to


class ReadKind(IntEnum):
    """What to read of a znode, by ZooKeeper's operation code."""

    DATA = 4  # (bytes or None, ZnodeStat)
    CHILDREN = 8  # list of names


_HEADS: Final = {kind: multiheader_struct.pack(kind, False, -1) for kind in ReadKind}  # of each request, made once


class ZnodeRead(NamedTuple):
    """One read; the answer for an absent znode is None."""

    kind: ReadKind
    path: str


@dataclass(frozen=True, slots=True)
class MultiRead:
    """The request as kazoo's connection sends it; `reads` have absolute paths."""

    type: ClassVar = 22
    reads: tuple[ZnodeRead, ...]

    def serialize(self) -> bytes:
        """The body in ZooKeeper's wire format: a MultiHeader and a request per read, without watches; then the end mark."""
        buffer = bytearray()
        for read in self.reads:
            buffer += _HEADS[read.kind] + write_string(read.path) + _NO_WATCH
        return bytes(buffer + multiheader_struct.pack(-1, True, -1))

    def deserialize(self, buffer: bytes, offset: int) -> list[Any]:
        """Answers in order, one for each read; an exception of kazoo's in place of one that failed.

        Raises whatever bytes lead to that are not ZooKeeper's: kazoo hands it to who waits.
        """
        answers = []
        for read in self.reads:
            kind, is_end, _ = multiheader_struct.unpack_from(buffer, offset)
            if is_end or kind not in (read.kind, _FAILED):
                raise ValueError("an answer is missing, or is one to another read")
            answer, offset = _decode_answer(kind, buffer, offset + multiheader_struct.size)
            answers.append(answer)
        return answers


def none_if_absent(answer: Any) -> Any:
    """The answer, or None for an absent znode; other failures are raised."""
    if isinstance(answer, NoNodeError):
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer


def absolute_path(chroot: str, path: str) -> str:
    """As kazoo's `_prefix_root`, which takes almost half of a large read's time (measured), for paths that are in order as they are."""
    if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
        return f"{chroot}{path}"
    return str(_prefix_root(chroot, path))


def _decode_answer(kind: int, buffer: bytes, offset: int) -> tuple[Any, int]:
    if kind == ReadKind.DATA:
        data, offset = read_buffer(buffer, offset)
        return (data, ZnodeStat._make(stat_struct.unpack_from(buffer, offset))), offset + stat_struct.size
    (number,) = int_struct.unpack_from(buffer, offset)  # the number of children, or the error's code
    offset += int_struct.size
    if kind == ReadKind.CHILDREN:
        names = []
        for _ in range(number):
            name, offset = read_string(buffer, offset)
            if name is None:
                raise ValueError("a child without a name")
            names.append(name)
        return names, offset
    return EXCEPTIONS[number](), offset


#: Reads a request, and requests under way. Single reads wake kazoo's thread through a pipe that blocks the caller forever once
#: some 270 are waiting in it: the product must stay below.
_BATCH, _IN_FLIGHT = 100, 2
_READ_TIMEOUT = 5.0  # seconds
_PAUSE_REFUSED = 0.1  # seconds between looks whether a login was refused
_CLOSE_TIMEOUT = 3.0  # seconds to close kazoo; a hung server would keep it for a session timeout


#: A server before 3.6 ends the session's connection at the first multiRead; kazoo is back within a second.
_TRIES_WITHOUT_MANY, _PAUSE_WITHOUT_MANY = 20, 0.2


class _WithoutMultiRead(Unreachable):
    """The server is older than 3.6: it ended the connection at a multiRead; single reads go on."""


class Changed(Unavailable):
    """The znode is not as observed before the act; nothing was changed, observe again."""


#: Every exception class of kazoo and ours for it.
ERRORS: Final[dict[type[Exception], type[KMigrateError]]] = {
    **dict.fromkeys(
        (
            kazoo.AuthFailedError,
            kazoo.InvalidACLError,
            kazoo.NoAuthError,
            kazoo.SASLException,
            kazoo.SessionClosedRequireSaslError,
        ),
        AuthenticationFailed,
    ),
    **dict.fromkeys((KazooTimeoutError, kazoo.LockTimeout, kazoo.OperationTimeoutError, kazoo.RequestTimeoutError), TimedOut),
    **dict.fromkeys(
        (
            ForceRetryError,
            RetryFailedError,
            kazoo.CancelledError,
            kazoo.ConnectionClosedError,
            kazoo.ConnectionDropped,
            kazoo.ConnectionLoss,
            kazoo.NewConfigNoQuorumError,
            kazoo.NotReadOnlyCallError,
            kazoo.ReconfigInProcessError,
            kazoo.SessionExpiredError,
            kazoo.SessionMovedError,
            kazoo.ThrottledOpError,
            kazoo.UnknownSessionError,
            kazoo.WriterNotClosedException,
            kazoo.ZookeeperStoppedError,
        ),
        Unreachable,
    ),
    **dict.fromkeys((kazoo.BadVersionError, kazoo.NoNodeError, kazoo.NodeExistsError, kazoo.NotEmptyError), Changed),
    **dict.fromkeys(
        (
            kazoo.APIError,
            kazoo.BadArgumentsError,
            kazoo.ConfigurationError,
            kazoo.DataInconsistency,
            kazoo.EphemeralOnLocalSessionError,
            kazoo.InvalidCallbackError,
            kazoo.MarshallingError,
            kazoo.NoChildrenForEphemeralsError,
            kazoo.NoWatcherError,
            kazoo.QuotaExceededError,
            kazoo.ReconfigDisabledError,
            kazoo.RolledBackError,
            kazoo.RuntimeInconsistency,
            kazoo.SystemZookeeperError,
            kazoo.UnimplementedError,
        ),
        Failed,
    ),
}


def error_for(error: Exception, text: str) -> KMigrateError:
    """Our exception for one of kazoo's, by the nearest class in `ERRORS`; an unknown one is `Failed`."""
    ours = next((ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS), Failed)
    return ours(f"{text}: {type(error).__name__}{f' {error}' if str(error) else ''}")


class Session:
    """One session. Thread-safe. Reconnects by itself for a while; when kazoo has given up, the next call starts afresh."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self.where = f"ZooKeeper {settings.hosts}{settings.chroot}"
        self.acl = CREATOR_ALL_ACL if has_identity(settings) else OPEN_ACL_UNSAFE
        self._settings = settings
        self._lock = threading.Lock()
        self._client: KazooClient | None = None
        self._live = threading.Event()
        self._started = 0.0
        self._warning = LastWarning()
        self._many: bool | None = None  # whether the server knows multiRead; None: not tried yet

    def client(self) -> KazooClient:
        """The connected client; raises `TimedOut` when there is no session within `connect_timeout`."""
        with self._lock:
            client = self._client = self._living_client() or self._start_client()
        if not self._wait_for_session():
            raise self._explain_failure()
        return client

    def _explain_failure(self) -> KMigrateError:
        if login := explain_login(kazoo.AuthFailedError(), self._warning, self._settings, f"{self.where}: connect"):
            return login
        if self._warning.refused:
            text = f"{self.where}: the login is refused ({self._warning.text})"
            return AuthenticationFailed(text, (Reason("U09", text),))
        text = f"{self.where}: no session within {self._settings.connect_timeout:g} s"
        hint = "" if self._settings.use_tls or "broken" not in self._warning.text else "; a port for TLS needs `use_tls`"
        return TimedOut(f"{text} ({self._warning.text or 'no answer'}{hint})")

    def _wait_for_session(self) -> bool:
        """Whether there is one in time; a login that was refused ends the wait."""
        end = time.monotonic() + self._settings.connect_timeout
        while not self._live.wait(min(_PAUSE_REFUSED, max(0.0, end - time.monotonic()))):
            is_final = self._warning.refused or self._warning.is_refused_by_all(self._settings)
            if is_final or time.monotonic() >= end:
                return False
        return True

    def close(self) -> None:
        """End the session and its ephemeral znodes."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            close_client(client)

    def read(self, what: str, *reads: ZnodeRead) -> list[Any]:
        """The answers to reads at one instant, not before this call even if a lagging follower answers.

        Of a server before 3.6, which has no multiRead, they are single reads, one after the other.
        """
        try:
            return self._read_once(what, reads)
        except _WithoutMultiRead:
            again = Retrying(
                retry=retry_if_exception_type(Unreachable),
                stop=stop_after_attempt(_TRIES_WITHOUT_MANY),
                wait=wait_fixed(_PAUSE_WITHOUT_MANY),
                reraise=True,
            )
            return again(self._read_once, what, reads)

    def _read_once(self, what: str, reads: Sequence[ZnodeRead]) -> list[Any]:
        client = self.client()
        synced = client.sync_async("/")
        if self._many is None:  # a server without multiRead refuses it out of turn, which would kill kazoo's thread
            self.wait_for_result("sync", synced)
        return self._receive_answers(what, self._send_reads(client, reads))

    def stream(self, what: str, kind: ReadKind, paths: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """(path, answer) in order, for any number of znodes; only those that exist."""
        if self._many is None:
            self.read(what, ZnodeRead(ReadKind.CHILDREN, "/"))  # finds out
        client = self.client()
        waiting: deque[tuple[tuple[str, ...], Any]] = deque()
        for batch in batches(paths, _BATCH):
            waiting.append((batch, self._send_reads(client, [ZnodeRead(kind, path) for path in batch])))
            if len(waiting) == _IN_FLIGHT:
                yield from self._receive_next(what, waiting)
        while waiting:
            yield from self._receive_next(what, waiting)

    @contextlib.contextmanager
    def map_errors(self, what: str) -> Iterator[None]:
        """Turn kazoo's exceptions into ours; `what` names the request."""
        try:
            yield
            self._warning.cause = None
        except KazooTimeoutError as error:
            raise TimedOut(f"{self.where}: {what}: no answer within {_READ_TIMEOUT:g} s") from error
        except (kazoo.KazooException, ForceRetryError) as error:
            text = f"{self.where}: {what}"
            raise explain_login(error, self._warning, self._settings, text) or error_for(error, text) from error

    def wait_for_result(self, what: str, wait_for_result: Any) -> Any:
        """The value of one of kazoo's asynchronous results."""
        with self.map_errors(what), self._map_malformed_answers(what):
            return wait_for_result.get(timeout=_READ_TIMEOUT)

    @contextlib.contextmanager
    def _map_malformed_answers(self, what: str) -> Iterator[None]:
        """What kazoo raises of an answer that is not ZooKeeper's protocol, as ours."""
        try:
            yield
        except _SENSELESS as error:
            text = f"{self.where}: {what}: the answer is not ZooKeeper's protocol ({type(error).__name__})"
            raise Unreachable(text) from error

    def _send_reads(self, client: KazooClient, reads: Sequence[ZnodeRead]) -> Any:
        """Queue the reads as one request, whose result is what `MultiRead.deserialize` returns; one by one for servers before 3.6."""
        if self._many is False:
            ask = {ReadKind.DATA: client.get_async, ReadKind.CHILDREN: client.get_children_async}
            return [ask[read.kind](read.path) for read in reads]
        result = client.handler.async_result()
        absolute = tuple(ZnodeRead(read.kind, absolute_path(client.chroot, read.path)) for read in reads)
        client._call(MultiRead(absolute), result)  # noqa: SLF001 - as kazoo's own TransactionRequest does
        return result

    def _receive_answers(self, what: str, sent: Any) -> list[Any]:
        end = time.monotonic() + _READ_TIMEOUT
        with self.map_errors(what), self._map_malformed_answers(what):
            if isinstance(sent, list):
                return [_value_or_none(result, end - time.monotonic()) for result in sent]
            try:
                answers = sent.get(timeout=_READ_TIMEOUT)
                self._many = True
                return [none_if_absent(answer) for answer in answers]
            except kazoo.UnimplementedError as error:
                self._many = False
                text = f"{self.where}: older than 3.6, it hung up on multiRead; single reads from now on"
                raise _WithoutMultiRead(text) from error

    def _receive_next(self, what: str, waiting: deque[tuple[tuple[str, ...], Any]]) -> Iterator[tuple[str, Any]]:
        paths, sent = waiting.popleft()
        answers = zip(paths, self._receive_answers(what, sent), strict=True)
        return ((path, answer) for path, answer in answers if answer is not None)

    def _living_client(self) -> KazooClient | None:
        client = self._client
        if client is None or client.client_state not in self._ended_states():
            return client
        close_client(client)
        return None

    def _ended_states(self) -> tuple[str, ...]:
        """The states of a client that has given up. A new one is CLOSED, too, until its thread runs, which a busy machine delays."""
        is_new = time.monotonic() - self._started < self._settings.connect_timeout
        is_starting = is_new and not self._warning.refused
        return (KeeperState.AUTH_FAILED,) if is_starting else (KeeperState.AUTH_FAILED, KeeperState.CLOSED)

    def _start_client(self) -> KazooClient:
        self._warning = LastWarning()
        if self._settings.use_tls:
            tls_context(self._settings)  # a file that is missing or damaged is named at once; kazoo would try it for ever
        with self.map_errors("connect"):
            client = KazooClient(**_client_arguments(self._settings, self._warning))
            _bound_answers(client)
            guard_login(client)
            self._live = client.start_async()
        self._started = time.monotonic()
        return client


def _bound_answers(client: KazooClient) -> None:
    """Have an answer without measure or sense end the connection, as any other break: kazoo would read all of it, or its thread would end."""
    connection = client._connection  # noqa: SLF001 - kazoo makes no other one
    read, read_socket = connection._read, connection._read_socket  # noqa: SLF001

    def read_bounded(length: int, timeout: float) -> Any:
        if not 0 <= length <= _LARGEST:
            raise kazoo.ConnectionDropped(f"an answer of {length} bytes is not ZooKeeper's protocol")
        return read(length, timeout)

    def read_guarded(timeout: float) -> Any:
        try:
            return read_socket(timeout)
        except _SENSELESS as error:
            raise kazoo.ConnectionDropped(f"an answer is not ZooKeeper's protocol ({type(error).__name__})") from error

    connection._read, connection._read_socket = read_bounded, read_guarded  # noqa: SLF001


def _value_or_none(result: Any, timeout: float) -> Any:
    try:
        return result.get(timeout=max(0.0, timeout))
    except kazoo.NoNodeError:
        return None


def close_client(client: KazooClient) -> None:
    """End a client's session and its ephemeral znodes; waits only a moment, since a hung server would block."""
    ending = threading.Thread(target=_stop_client, args=(client,), daemon=True)
    ending.start()
    ending.join(_CLOSE_TIMEOUT)


def _stop_client(client: KazooClient) -> None:
    with contextlib.suppress(kazoo.KazooException, OSError):
        client.stop()
        client.close()


def has_identity(settings: ZooKeeperSettings) -> bool:
    """Whether ZooKeeper knows who connects; without it, nothing that is created there can belong to an identity."""
    return any((settings.digest, settings.sasl_mechanism, settings.use_tls and settings.cert_file))


def own_identities(settings: ZooKeeperSettings) -> dict[str, str | None]:
    """Scheme -> our id, as an ACL has it; None where only the server knows it: it makes the name of a certificate or a Kerberos principal."""
    ids_by_scheme: dict[str, str | None] = {}
    if settings.digest:
        ids_by_scheme["digest"] = make_digest_acl_credential(*settings.digest.split(":", 1))
    if settings.sasl_mechanism:
        user = settings.sasl_user or ""
        ids_by_scheme["sasl"] = user if settings.sasl_mechanism == "DIGEST-MD5" and not {*user} & {*"/@"} else None
    if settings.use_tls and settings.cert_file:
        ids_by_scheme["x509"] = None
    return ids_by_scheme


def name_strangers(writers: Iterable[tuple[str, str]], ours: Mapping[str, str | None]) -> str:
    """Who of these may not be us, for a message; empty: none. `writers`: scheme and id of who may write; `ours`: as `own_identities`.

    One id of a scheme whose name for us only the server knows is taken for us: a second one is not.
    """
    own = {(scheme, name) for scheme, name in ours.items() if name is not None}
    unknown = sorted(set(writers) - own)
    alone = {scheme for scheme, name in ours.items() if name is None and sum(scheme == other for other, _ in unknown) == 1}
    return summarize(f"{scheme}:{_name_without_hash(scheme, name)}" for scheme, name in unknown if scheme not in alone)


def _name_without_hash(scheme: str, name: str) -> str:
    return name.partition(":")[0] if scheme == "digest" else name  # without the password's hash


def _client_arguments(settings: ZooKeeperSettings, warning: logging.Handler) -> dict[str, Any]:
    logger = logging.Logger("kazoo", logging.WARNING)  # noqa: LOG001 - apart from the tree: a task's log is for operators
    logger.addHandler(warning)
    return {
        "hosts": f"{settings.hosts}{settings.chroot}",
        "timeout": settings.session_timeout,
        "connection_retry": {"max_tries": 20, "delay": 0.1, "backoff": 1.5, "max_delay": 1.0},  # some 15 s, then afresh
        "logger": logger,
        **access_arguments(settings),
    }


def access_arguments(settings: ZooKeeperSettings) -> dict[str, Any]:
    """The arguments of kazoo's client for TLS and our identity."""
    return {
        "auth_data": [("digest", settings.digest)] if settings.digest else None,
        "sasl_options": sasl_options(settings),
        "handler": _TlsHandler(settings) if settings.use_tls else None,
    }


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Connects by the context of `clients.tls`: kazoo's own trusts the machine's authorities beside those of `ca_file`."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        super().__init__()
        self._settings = settings

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """A connection to a server whose certificate is verified; `hostname`: as the settings have it; `timeout`: seconds for each step.

        Files are read again each time: what has replaced them is used. Raises `ConnectionDropped` if they cannot be used, so that kazoo
        goes on trying, and what sockets raise.
        """
        try:
            context = tls_context(self._settings)
        except AuthenticationFailed as error:
            raise kazoo.ConnectionDropped(str(error)) from error
        raw = socket.create_connection(address, timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(raw, server_hostname=hostname)
