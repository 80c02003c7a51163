"""SASL towards ZooKeeper without one: packages that are missing, kazoo's log as errors of ours, the exchange as kazoo drives it.

`test_zookeeper_logins_real` has real servers and a real KDC.
"""

from __future__ import annotations

import logging
import socketserver
import ssl
import struct
import sys
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo import exceptions as kazoo

from airflow_provider_kmigrate.clients import zookeeper_sasl
from airflow_provider_kmigrate.clients.settings import KerberosLogin, WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_sasl import LastWarning, explain_login, sasl_options
from airflow_provider_kmigrate.clients.zookeeper_session import ReadKind, Session, ZnodeRead
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.exceptions import (
    AuthenticationFailed,
    Failed,
    KMigrateError,
    Refused,
    TimedOut,
    Unavailable,
    Unreachable,
)
from tests.waiting import beside, wait_until

NO_TICKET = AuthenticationFailed("zk SASL GSSAPI: there is no ticket", (Reason("U09", "no ticket"),))
NO_KDC = Unreachable("zk SASL GSSAPI: no KDC of the realm answers", (Reason("U09", "no KDC"),))
LOST = "Connection dropped: socket connection broken"


def by(mechanism: str | None) -> ZooKeeperSettings:
    return ZooKeeperSettings("127.0.0.1:1", sasl_mechanism=mechanism, sasl_user="u", sasl_password="hidden")


@pytest.mark.parametrize(
    ("mechanism", "missing", "extra"),
    [("DIGEST-MD5", ["puresasl"], "sasl"), ("GSSAPI", ["gssapi"], "kerberos"), ("GSSAPI", ["puresasl", "gssapi"], "kerberos")],
)
def test_a_package_that_is_missing_is_named_with_the_mechanism(
    mechanism: str, missing: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_sasl, "find_spec", lambda name: None if name in missing else object())
    text = rf"N03.*SASL {mechanism}.*{' and '.join(missing)}.*pip install 'airflow-provider-kmigrate\[{extra}\]'"
    with ZooKeeper(by(mechanism)) as client, pytest.raises(Refused, match=text) as caught:
        client.view()
    assert "hidden" not in str(caught.value)


def test_without_sasl_there_are_no_options() -> None:
    assert sasl_options(by(None)) is None


def test_digest_is_pure_sasls_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_sasl, "find_spec", lambda _: object())
    assert sasl_options(by("DIGEST-MD5")) == {"mechanism": "DIGEST-MD5", "username": "u", "password": "hidden"}


class Exchange:
    """`sasl.KerberosMechanism` towards a server that says `proof`, `layers`, and then nothing."""

    def __init__(self) -> None:
        self.received = list[bytes]()

    def auth_bytes(self) -> bytes:
        return [b"ticket", b"", b"choice"][len(self.received)]

    def receive(self, answer: bytes) -> None:
        self.received.append(answer)

    def is_done(self) -> bool:
        return len(self.received) == 3


def begin(monkeypatch: pytest.MonkeyPatch, make: Any, **more: Any) -> Any:
    """What pure-sasl's client makes of the options, in a process whose own GSSAPI others use."""
    others = object()
    table: dict[str, Any] = {"GSSAPI": others}
    monkeypatch.setitem(sys.modules, "puresasl", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "puresasl.mechanisms", SimpleNamespace(mechanisms=table))
    monkeypatch.setattr(zookeeper_sasl, "find_spec", lambda _: object())
    monkeypatch.setattr(zookeeper_sasl, "make_mechanism", make)
    options = dict(sasl_options(ZooKeeperSettings("zk:2181", sasl_mechanism="GSSAPI", **more)) or {})
    assert table["GSSAPI"] is others
    client = SimpleNamespace(host="zk", service=options.pop("service"))
    return table[options.pop("mechanism")](client, **options)


def test_the_exchange_ends_with_the_servers_last_word_even_if_it_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[WireSecurity, str]]()
    exchange = Exchange()

    def make(security: WireSecurity, host: str, what: str, _: object) -> Exchange:
        asked.append((security, host))
        assert "SASL GSSAPI" in what
        return exchange

    login = begin(monkeypatch, make, kerberos=KerberosLogin("zookeeper", "kafka", "/k"))
    assert asked[0][0].kerberos == KerberosLogin("zookeeper", "kafka", "/k")
    assert asked[0][1] == "zk"
    sent = [login.process(challenge) for challenge in (None, b"proof", b"layers")]
    assert not login.complete
    assert (login.process(None), login.complete) == (None, True)
    assert (sent, exchange.received) == ([b"ticket", b"", b"choice"], [b"proof", b"layers", b""])
    login.dispose()


def test_the_service_is_zookeeper_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[WireSecurity]()
    begin(monkeypatch, lambda security, *_: asked.append(security) or Exchange())
    assert asked[0].kerberos == KerberosLogin("zookeeper")


@pytest.mark.parametrize(
    ("error", "expected"),
    [(NO_TICKET, kazoo.AuthFailedError), (NO_KDC, kazoo.ConnectionDropped), (TimedOut("slow"), kazoo.ConnectionDropped)],
)
def test_kazoo_tries_again_only_if_that_may_help(
    error: KMigrateError, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    with pytest.raises(expected) as raised:
        begin(monkeypatch, fail)
    assert raised.value.__cause__ is error


def chained(error: Exception, cause: Exception | None) -> Exception:
    error.__cause__ = cause
    return error


def unverified() -> ssl.SSLCertVerificationError:
    """What a handshake with a certificate of a strange authority ends with."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.reason, error.verify_code, error.verify_message = (
        "CERTIFICATE_VERIFY_FAILED",
        20,
        "unable to get local issuer certificate",
    )
    return error


def dropped(error: OSError) -> kazoo.ConnectionDropped:
    """As kazoo makes it of an error of a socket, which it does not name as the cause."""
    ended = kazoo.ConnectionDropped(f"socket connection error: {error}")
    ended.__context__ = error
    return ended


def logged(*lines: tuple[str, Any]) -> LastWarning:
    """What is kept of these lines of kazoo's log."""
    warning, logger = LastWarning(), logging.Logger("kazoo")  # noqa: LOG001 - apart from the tree
    logger.addHandler(warning)
    for line, error in lines:
        logger.warning(line, *([] if error is None else [error]))
    return warning


REFUSED = ("AUTH_FAILED closing: %s", kazoo.AuthFailedError("Connection dropped in SASL"))
UNKNOWN = ("AUTH_FAILED closing: %s", chained(kazoo.AuthFailedError("Unknown error"), NO_TICKET))
WITHOUT_KDC = ("Connection dropped: %s", chained(kazoo.ConnectionDropped("no KDC"), NO_KDC))
UNTRUSTED = ("Connection dropped: %s", dropped(unverified()))
DOWN = ("Connection dropped: %s", dropped(ConnectionRefusedError(111, "Connection refused")))
AFTERWARDS = ("Transition to CONNECTING", None)
ENDED = ("Failed connecting to Zookeeper within the connection retry policy.", None)


@pytest.mark.parametrize(
    ("lines", "error", "mechanism", "kind", "text"),
    [
        ([UNKNOWN], kazoo.AuthFailedError(), "GSSAPI", AuthenticationFailed, "there is no ticket"),
        ([WITHOUT_KDC, AFTERWARDS], kazoo.ConnectionLoss(), "GSSAPI", Unreachable, "no KDC of the realm answers"),
        ([WITHOUT_KDC, ENDED], kazoo.ConnectionClosedError(), "GSSAPI", Unreachable, "no KDC of the realm answers"),
        ([REFUSED], kazoo.AuthFailedError(), "GSSAPI", AuthenticationFailed, "SASL GSSAPI: ZooKeeper does not accept the ticket"),
        (
            [REFUSED],
            kazoo.AuthFailedError(),
            "DIGEST-MD5",
            AuthenticationFailed,
            "SASL DIGEST-MD5: ZooKeeper does not accept the user",
        ),
        ([], kazoo.SessionClosedRequireSaslError(), None, AuthenticationFailed, "by SASL only"),
        ([WITHOUT_KDC, (LOST, None)], kazoo.ConnectionLoss(), "GSSAPI", Unreachable, "no KDC of the realm answers"),
        ([UNTRUSTED, AFTERWARDS], kazoo.ConnectionLoss(), None, AuthenticationFailed, "TLS: the other side's certificate is not"),
        ([UNTRUSTED, DOWN], kazoo.ConnectionLoss(), None, AuthenticationFailed, "TLS: the other side's certificate is not"),
        ([DOWN, UNTRUSTED], kazoo.ConnectionLoss(), None, Unreachable, "TLS: the other side's certificate is not"),
        ([REFUSED], kazoo.AuthFailedError(), None, None, ""),
        ([UNKNOWN], kazoo.NoNodeError(), "GSSAPI", None, ""),
        ([], kazoo.ConnectionLoss(), "GSSAPI", None, ""),
    ],
)
def test_an_error_of_kazoo_is_named_by_the_line_before_it(
    lines: list[tuple[str, Any]], error: Exception, mechanism: str | None, kind: type[KMigrateError] | None, text: str
) -> None:
    explained = explain_login(error, logged(*lines), by(mechanism), "ZooKeeper zk: read")
    if kind is None:
        assert explained is None
        return
    assert type(explained) is kind
    assert str(explained).startswith("ZooKeeper zk: read: ")
    assert text in str(explained)
    assert [reason.code for reason in explained.reasons] == ["U09"]


@pytest.mark.parametrize(
    ("lines", "mechanism", "kind", "text"),
    [
        ([UNKNOWN], "GSSAPI", AuthenticationFailed, "connect: zk SASL GSSAPI: there is no ticket"),
        ([REFUSED], None, AuthenticationFailed, "the login is refused (AUTH_FAILED closing: Connection dropped in SASL)"),
        ([UNTRUSTED, AFTERWARDS], None, AuthenticationFailed, "connect: TLS: the other side's certificate is not accepted here"),
        ([(LOST, None)], "GSSAPI", TimedOut, f"no session within 0 s ({LOST}; a port for TLS needs `use_tls`)"),
        ([DOWN], None, TimedOut, "Connection refused)"),
    ],
)
def test_why_there_is_no_session(
    lines: list[tuple[str, Any]], mechanism: str | None, kind: type[KMigrateError], text: str
) -> None:
    session = Session(replace(by(mechanism), connect_timeout=0.0))
    session._warning = logged(*lines)
    failure = session._explain_failure()
    assert type(failure) is kind
    assert text in str(failure)
    assert [reason.code for reason in failure.reasons] == ([] if kind is TimedOut else ["U09"])


@pytest.mark.parametrize(
    ("lines", "hosts", "is_final"),
    [
        ([UNTRUSTED], "zk:2181", True),
        ([UNTRUSTED, AFTERWARDS], "zk:2181", True),
        ([UNTRUSTED], "zk1:2181,zk2:2181", False),
        ([UNTRUSTED, UNTRUSTED], "zk1:2181,zk2:2181", True),
        ([DOWN, UNTRUSTED, UNTRUSTED], "zk1:2181,zk2:2181", False),
        ([UNTRUSTED, DOWN, UNTRUSTED], "zk1:2181,zk2:2181", False),
        ([DOWN], "zk:2181", False),
        ([], "zk:2181", False),
    ],
)
def test_a_handshake_that_every_server_refuses_ends_the_wait_at_once(
    lines: list[tuple[str, Any]], hosts: str, is_final: bool
) -> None:
    """An observation gives ZooKeeper 2.5 s: a refusal that comes after ten would never be named."""
    assert logged(*lines).is_refused_by_all(ZooKeeperSettings(hosts)) is is_final


def test_a_line_without_an_error_has_no_cause() -> None:
    assert logged(("Cannot resolve %s: %s", None)).cause is None
    assert zookeeper_sasl.find_own_error({"no": "tuple"}) is None
    assert zookeeper_sasl.find_own_error((Failed("mine"),)) is not None


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (kazoo.SessionClosedRequireSaslError(), kazoo.AuthFailedError),
        (kazoo.SASLException("library error"), kazoo.AuthFailedError),
        (kazoo.AuthFailedError("Connection dropped in SASL"), kazoo.AuthFailedError),
        (kazoo.ConnectionDropped("no KDC"), kazoo.ConnectionDropped),
        (kazoo.SessionExpiredError(), kazoo.SessionExpiredError),
    ],
)
def test_a_server_that_refuses_a_login_ends_no_thread(raised: Exception, expected: type[Exception]) -> None:
    def authenticate(host: str, timeout: float) -> None:
        assert (host, timeout) == ("zk", 3.0)
        raise raised

    client = SimpleNamespace(_connection=SimpleNamespace(_authenticate_with_sasl=authenticate))
    zookeeper_sasl.guard_login(client)
    with pytest.raises(expected):
        client._connection._authenticate_with_sasl("zk", 3.0)


def sequence_of_logins(*ends: Exception | None) -> list[str]:
    """What becomes of logins that end so, one after the other; None: with success."""
    waiting = list(ends)

    def authenticate(_host: str, _timeout: float) -> None:
        if (end := waiting.pop(0)) is not None:
            raise end

    client = SimpleNamespace(_connection=SimpleNamespace(_authenticate_with_sasl=authenticate))
    zookeeper_sasl.guard_login(client)
    outcomes = list[str]()
    for _ in ends:
        try:
            client._connection._authenticate_with_sasl("zk", 3.0)
            outcomes.append("logged in")
        except kazoo.KazooException as error:
            outcomes.append(type(error).__name__)
    return outcomes


def test_a_server_that_stops_in_a_login_has_not_refused_it() -> None:
    """kazoo never connects again after a refusal: a migrating consumer would deliver nothing until it is started again."""
    broken = [chained(kazoo.AuthFailedError("Connection dropped in SASL"), kazoo.ConnectionDropped(LOST)) for _ in range(9)]
    lost, refused = "ConnectionDropped", "AuthFailedError"
    assert sequence_of_logins(broken[0], None) == [lost, "logged in"]
    assert sequence_of_logins(*broken[:2], None, *broken[2:4], None) == [lost, lost, "logged in"] * 2
    assert sequence_of_logins(*broken[:3]) == [lost, lost, refused], "a server that refuses so does it each time"
    assert sequence_of_logins(broken[0], kazoo.AuthFailedError()) == [lost, refused], "its own word is a refusal at once"


class BreakingServer(socketserver.ThreadingTCPServer):
    """A ZooKeeper that takes each session, and ends the connection at its first request: the login."""

    daemon_threads = True
    logins = 0

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.read(struct.unpack(">i", self.rfile.read(4))[0])
            answer = struct.pack(">iiqi", 0, 10_000, 7, 16) + bytes(16) + b"\0"
            self.wfile.write(struct.pack(">i", len(answer)) + answer)
            if self.rfile.read(4):
                self.server.logins += 1  # type: ignore[attr-defined]


@pytest.mark.skipif(not find_spec("puresasl"), reason="needs the package pure-sasl")
def test_kazoo_itself_connects_again_after_a_login_that_broke() -> None:
    errors = list[AuthenticationFailed]()
    with BreakingServer(("127.0.0.1", 0), BreakingServer.Handler) as server, beside(lambda _: server.serve_forever(0.05)):
        session = Session(replace(by("DIGEST-MD5"), hosts=f"127.0.0.1:{server.server_address[1]}"))

        def is_refused() -> bool:
            try:
                session.read("the root", ZnodeRead(ReadKind.DATA, "/"))
            except AuthenticationFailed as error:
                errors.append(error)
            return bool(errors)

        try:
            wait_until(is_refused, "the login is refused", despite=(Unavailable,))
        finally:
            session.close()
            server.shutdown()
    assert "SASL DIGEST-MD5: ZooKeeper does not accept the user or password" in str(errors[0])
    assert server.logins == 3
