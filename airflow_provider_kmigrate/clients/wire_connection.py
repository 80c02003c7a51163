"""One socket to one node, one request at a time: TLS, SASL, framing, correlation ids and deadlines.

Requests and answers are kafka-python's protocol classes; nothing else of that library runs. After any error a connection is out
of step and must be dropped: the caller (`Wire`) does.

Certificates are always verified; `verify_hostname` only decides whether the name must match too. SASL speaks PLAIN and
SCRAM-SHA-256/512 (kafka-python's own mechanism classes) inside SaslHandshake v1 and SaslAuthenticate, KIP-43 and KIP-152.
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

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from airflow_provider_kmigrate.clients.admin import UNSUPPORTED_VERSION, check
from airflow_provider_kmigrate.clients.settings import KafkaSettings, WireSecurity
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, TimedOut, Unreachable

Call = Callable[[Any], Any]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MAX_ROUNDS = 3  # PLAIN needs one, SCRAM two


def from_kafka(settings: KafkaSettings) -> WireSecurity:
    """The identity that librdkafka's properties give the admin client; PEM files only, as librdkafka reads them."""
    get = settings.properties.get
    return WireSecurity(
        protocol=get("security.protocol", "PLAINTEXT").upper(),
        ca_file=get("ssl.ca.location"),
        cert_file=get("ssl.certificate.location"),
        key_file=get("ssl.key.location"),
        key_password=get("ssl.key.password"),
        verify_hostname=get("ssl.endpoint.identification.algorithm", "https") != "none",
        sasl_mechanism=get("sasl.mechanism") or get("sasl.mechanisms"),
        sasl_user=get("sasl.username"),
        sasl_password=get("sasl.password"),
    )


def tls_context(security: WireSecurity) -> ssl.SSLContext | None:
    """The context for SSL and SASL_SSL, None for the plain protocols; raises AuthenticationFailed if a file cannot be used."""
    if security.protocol not in {"SSL", "SASL_SSL"}:
        return None
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        context.check_hostname = security.verify_hostname
        if security.cert_file:
            context.load_cert_chain(security.cert_file, security.key_file, security.key_password or _no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (security.ca_file, security.cert_file, security.key_file)))
        raise AuthenticationFailed(f"the TLS files cannot be used ({files}): {error}") from error
    return context


def authenticate(call: Call, security: WireSecurity, where: str) -> None:
    """Run the SASL exchange over `call`, which sends one request and returns its answer; nothing to do without SASL."""
    if not security.protocol.startswith("SASL_"):
        return
    mechanism = _mechanism(security)
    answer = call(SaslHandshakeRequest(mechanism=security.sasl_mechanism, version=1))
    check(answer.error_code, f"{where} SaslHandshake", f"it offers {', '.join(answer.mechanisms)}")
    for _ in range(_MAX_ROUNDS):
        answer = call(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes(), version=1))
        check(answer.error_code, f"{where} SaslAuthenticate", answer.error_message)
        _believe(mechanism, answer.auth_bytes, where)
        if mechanism.is_done():
            return
    raise AuthenticationFailed(f"{where}: SASL {security.sasl_mechanism} did not end after {_MAX_ROUNDS} rounds")


def _mechanism(security: WireSecurity) -> Any:
    if security.sasl_mechanism not in MECHANISMS:
        known = ", ".join(MECHANISMS)
        raise AuthenticationFailed(f"SASL mechanism {security.sasl_mechanism} is not supported here; use one of {known}")
    if not security.sasl_user or not security.sasl_password:
        raise AuthenticationFailed(f"SASL {security.sasl_mechanism} needs a user and a password in the Kafka connection")
    return get_sasl_mechanism(security.sasl_mechanism)(
        sasl_mechanism=security.sasl_mechanism,
        sasl_plain_username=security.sasl_user,
        sasl_plain_password=security.sasl_password,
    )


def _believe(mechanism: Any, proof: bytes, where: str) -> None:
    try:
        mechanism.receive(proof)
    except (ValueError, KeyError) as error:  # SCRAM: the node must prove that it knows the password too
        raise AuthenticationFailed(f"{where}: the node's SASL answer is not valid proof: {error}") from error


def _no_password() -> str:
    """Refuse to ask: without this OpenSSL would ask on the terminal, and a task would hang."""
    return ""


_CLIENT = "kmigrate"
_MAX_FRAME = 256 * 1024 * 1024  # bytes; metadata of 50,000 partitions takes 2 MB
_RECEIVE = 1 << 18
#: Reasons in OpenSSL's words that blame the certificate and not the connection.
_TLS_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "DECRYPT_ERROR")


class Deadline:
    """One budget of seconds for all of a call."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """The seconds left; raises TimeoutError if none are."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


@contextlib.contextmanager
def map_errors(where: str, deadline: Deadline) -> Iterator[None]:
    """Turn errors of socket and TLS into ours, in this one place."""
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
        """Close the socket; never raises."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Send one request and return its decoded answer; the caller handles error codes in it."""
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
        """The newest version that both sides speak; raises Failed if there is none."""
        name, served = request.name.removesuffix("Request"), self.keys.get(request.API_KEY)
        if served is None:
            raise Failed(f"{self.where} does not serve {name} (api key {request.API_KEY})")
        version = min(highest, served[1])
        if version < max(lowest, served[0]):
            raise Failed(f"{self.where} serves {name} v{served[0]}-v{served[1]}, kmigrate supports v{lowest}-v{highest}")
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
    except Exception as error:  # the decoder raises anything on a wrong byte
        raise Unreachable(f"{where}: the answer is not Kafka's protocol ({type(error).__name__})") from error
