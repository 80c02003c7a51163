"""Nodes behind an Airflow SSH connection: the client of Airflow's `SSHHook`, and one channel of it as a pipe to a program.

User, port, key, passphrase, host key and `conn_timeout` are the connection's, a jump host is the `ProxyCommand` of ~/.ssh/config: all
as `SSHHook` reads them. Not its `exec_ssh_client_command`: that one logs all output. Host keys are always verified.

The only module that imports paramiko, which is an extra of this package: `hooks.connections.open_ssh` imports it on first use.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator

import paramiko
from airflow.providers.ssh.hooks.ssh import SSHHook
from airflow.sdk import Connection as AirflowConnection

from airflow_provider_kmigrate.airflow_releases import AirflowException
from airflow_provider_kmigrate.clients.settings import SshSettings
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.exceptions import Refused, Unreachable

_FIELDS = ("conn_type", "host", "port", "login", "password", "schema")
_CONNECT = 10  # seconds, unless the connection has a `conn_timeout`; SSHHook would wait without end
_LOGIN = 15  # seconds for the banner, for the login, and for the start of the program
_DEAD = 10  # seconds without a sign of the machine's kernel, after which its connection is dead
_END = 5.0  # seconds from the end of a program's output to its exit code
_CHUNK = 65_536
_STEP = 0.5  # seconds between two reads of stderr
_SAID, _FLOOD = 16_384, 64  # bytes of it that are kept, and chunks that are read at once
_SHOWN = 60  # characters of a line of others
_INTERRUPTED = ("shut down", "timeout")  # paramiko calls a connection that broke during the login a failed login
_UNKNOWN, _KEY = "not found in known_hosts", "private key"

_log = logging.getLogger("paramiko")
if _log.level == logging.NOTSET:  # it raises what it logs, and a machine that is away is asked once a second
    _log.setLevel(logging.CRITICAL)


class SshPipe:
    """`clients.hosts.agent.Pipe` over a connection of its own. Raises `Refused` (N03, M06) and `Unreachable` if it cannot be opened."""

    def __init__(self, settings: SshSettings, host: str, argv: tuple[str, ...]) -> None:
        self.command = shlex.join(argv)
        self._said = b""
        with _translate_errors(settings.conn_id, host):
            self._client = _make_hook(settings, host).get_conn()
            try:
                _enable_tcp_keepalive(self._client)
                self._channel = _start_program(self._client, self.command)
            except BaseException:
                self._client.close()
                raise

    def is_open(self) -> bool:
        """False once the program ended or the connection broke."""
        return not self._channel.exit_status_ready()

    def write(self, data: bytes, timeout: float) -> None:
        """Raises OSError, also if not all was taken within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        try:
            while data:
                self._channel.settimeout(_seconds_left(deadline))
                data = data[self._channel.send(data) :]
        except (paramiko.SSHException, EOFError) as error:
            raise OSError(f"{error}") from error

    def read(self, timeout: float) -> bytes:
        """What the program printed, empty at its end. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while True:
            self._read_stderr()
            self._channel.settimeout(min(_STEP, _seconds_left(deadline)))
            try:
                data: bytes = self._channel.recv(_CHUNK)
            except TimeoutError:
                continue
            except (OSError, paramiko.SSHException, EOFError):
                return b""
            return data

    def ending(self, timeout: float = _END) -> tuple[int | None, str]:
        """Its exit code, None if the connection broke, and the end of its stderr."""
        deadline = time.monotonic() + timeout
        while not self._channel.status_event.wait(_STEP) and time.monotonic() < deadline:
            self._read_stderr()
        self._read_stderr()
        code = self._channel.exit_status
        return None if code < 0 else code, self._said.decode(errors="replace")

    def _read_stderr(self) -> None:
        """Read what is on stderr, and keep its end: unread, it takes the place of the answer in the connection's window."""
        for _ in range(_FLOOD):
            if not self._channel.recv_stderr_ready():
                return
            self._said = (self._said + self._channel.recv_stderr(_CHUNK))[-_SAID:]

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def _seconds_left(deadline: float) -> float:
    """The seconds left; raises TimeoutError if none are."""
    if (remaining := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return remaining


def _make_hook(settings: SshSettings, host: str) -> SSHHook:
    """The hook for one node: its host, the connection's everything else. It asks no secrets backend again."""
    extra = settings.fields.get("extra") or "{}"
    connection = AirflowConnection(
        conn_id=settings.conn_id,
        extra=extra if isinstance(extra, str) else json.dumps(dict(extra)),
        **{name: settings.fields.get(name) for name in _FIELDS},
    )

    class Hook(SSHHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> AirflowConnection:  # noqa: ARG003  # there is but one
            return connection

    # One attempt: the caller decides whether to try again
    hook = Hook(settings.conn_id, host, banner_timeout=_LOGIN, auth_timeout=_LOGIN, conn_retry_attempts=1)
    hook.conn_timeout = hook.conn_timeout or _CONNECT
    hook.no_host_key_check = hook.allow_host_key_change = False  # before release 7 the hook's default was to verify nothing
    return hook


def _enable_tcp_keepalive(client: paramiko.SSHClient) -> None:
    """Have the kernel end the connection of a machine that died: ssh's own keepalive waits for TCP, some 15 minutes."""
    sock = client.get_transport().sock
    if isinstance(sock, socket.socket):  # a jump host's is a program's pipe
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 1_000 * _DEAD)):
            if (number := getattr(socket, option, None)) is not None:  # macOS has not all of them
                sock.setsockopt(socket.IPPROTO_TCP, number, value)


def _start_program(client: paramiko.SSHClient, command: str) -> paramiko.Channel:
    """A channel with the program. paramiko waits for the answer to its start without end: then the connection is closed."""
    transport = client.get_transport()
    with _call_on_timeout(_LOGIN, transport.close):
        channel = transport.open_session(timeout=_LOGIN)
        channel.exec_command(command)
    return channel


@contextlib.contextmanager
def _call_on_timeout(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _translate_errors(conn_id: str, host: str) -> Iterator[None]:
    """What SSHHook and paramiko raise, as what it means for a node."""
    host_and_connection = f"{host} through connection {conn_id}"
    try:
        yield
    except paramiko.BadHostKeyException as error:
        key_mismatch = f"its host key is {error.key.fingerprint}, the known one is {error.expected_key.fingerprint}"
        raise _login_refusal(f"{host_and_connection}: {key_mismatch}. Another machine may answer in its place.") from error
    except paramiko.hostkeys.InvalidHostKey as error:
        text = (
            f"{host_and_connection}: paramiko cannot read a line of ~/.ssh/known_hosts of Airflow's user: {error.line[:_SHOWN]}"
        )
        raise _login_refusal(
            f"{text}. It knows neither @cert-authority nor @revoked. Remove that line, and every other line with a revoked key."
        ) from error
    except paramiko.AuthenticationException as error:
        if any(word in str(error) for word in _INTERRUPTED):
            raise _connection_lost(host, error) from error
        remedy = "Correct login, key and password of the connection, or authorized_keys of that user on the machine."
        raise _login_refusal(f"{host_and_connection}: it does not accept the login: {error} {remedy}") from error
    except (FileNotFoundError, PermissionError) as error:
        raise _login_refusal(
            f"{host_and_connection}: {error}. Airflow's user needs that file on each worker and the triggerer."
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if _UNKNOWN in str(error):
            raise _login_refusal(f"{host_and_connection}: its host key is not known.") from error
        if _KEY in str(error):
            raise _login_refusal(f"{host_and_connection}: {error}. Correct the connection's key.") from error
        raise _connection_lost(host, error) from error
    except (AirflowException, ValueError) as error:
        raise Refused.because(Reason("N03", f"connection {conn_id} cannot be used: {error}")) from error


def _login_refusal(text: str) -> Refused:
    return Refused.because(Reason("M06", text))


def _connection_lost(host: str, error: Exception) -> Unreachable:
    return Unreachable(f"{host}: no SSH connection: {error or type(error).__name__}")
