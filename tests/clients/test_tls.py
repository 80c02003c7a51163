"""What a failed handshake is called: every alert of TLS, each mismatch of a certificate, and a port that speaks something else; who is trusted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import pytest
from cryptography.hazmat.primitives import serialization

from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession
from airflow_provider_kmigrate.clients import tools
from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.metrics import default_tls_context
from airflow_provider_kmigrate.clients.oauth import token_for
from airflow_provider_kmigrate.clients.settings import OAuthLogin, WebhookSettings, WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.clients.tls import explain_failure, make_context, tls_context
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Unreachable
from tests.clients.authority import Authority

ALERTS = [
    f"TLSV1_ALERT_{name.removeprefix('ALERT_DESCRIPTION_')}"
    for name in sorted(vars(ssl))
    if name.startswith("ALERT_DESCRIPTION_")
]
OF_A_CERTIFICATE = {
    "ACCESS_DENIED",
    "BAD_CERTIFICATE",
    "BAD_CERTIFICATE_HASH_VALUE",
    "BAD_CERTIFICATE_STATUS_RESPONSE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_UNOBTAINABLE",
    "DECRYPT_ERROR",
    "HANDSHAKE_FAILURE",
    "UNKNOWN_CA",
    "UNSUPPORTED_CERTIFICATE",
}


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_about_our_certificate_is_a_refusal_and_no_other_is(alert: str) -> None:
    error = explain_failure(failed(alert), "zk")
    assert f"({alert})" in str(error)
    assert str(error).startswith("zk: TLS: ")
    if alert.removeprefix("TLSV1_ALERT_") in OF_A_CERTIFICATE:
        assert isinstance(error, AuthenticationFailed)
        assert "the other side refuses this connection's certificate, or demands one and there is none" in str(error)
        assert [reason.code for reason in error.reasons] == ["U09"]
    else:
        assert isinstance(error, Unreachable)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (62, "is not for this host"),
        (64, "is not for this host"),
        (10, "is not accepted here"),  # expired
        (18, "is not accepted here"),  # self-signed
        (20, "is not accepted here"),  # no issuer
    ],
)
def test_a_certificate_of_the_other_side_is_named_with_why(code: int, text: str) -> None:
    unverified = ssl.SSLCertVerificationError(1, "certificate verify failed")
    unverified.reason, unverified.verify_code, unverified.verify_message = "CERTIFICATE_VERIFY_FAILED", code, "such a thing"
    error = explain_failure(unverified)
    assert isinstance(error, AuthenticationFailed)
    assert str(error).startswith(f"TLS: the other side's certificate {text}")
    assert "such a thing" in str(error)
    assert [reason.code for reason in error.reasons] == ["U09"]


@pytest.mark.parametrize("reason", ["WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "HTTP_REQUEST"])
def test_a_port_that_speaks_something_else_is_named(reason: str) -> None:
    error = explain_failure(failed(reason))
    assert isinstance(error, Unreachable)
    assert "what answers at this port speaks no TLS, or hung up" in str(error)


@pytest.mark.parametrize("kind", [WireSecurity, ZooKeeperSettings])
def test_files_that_cannot_be_used_are_named_by_their_paths(kind: type, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("canary-5a1f")
    for file in (damaged, tmp_path / "gone.pem"):
        with pytest.raises(AuthenticationFailed, match=str(file)) as error:
            tls_context(kind("x", ca_file=str(file)))
        assert [reason.code for reason in error.value.reasons] == ["U09"]
        assert "canary" not in str(error.value)


def test_certificates_are_judged_alike_by_every_release_of_python(tmp_path: Path) -> None:
    """From 3.13 on a context would refuse an authority like this one, without key identifiers, which brokers and ZooKeeper take."""
    authority = Authority(tmp_path)
    assert not make_context(authority.ca).verify_flags & ssl.VERIFY_X509_STRICT
    assert [make_context(authority.ca).verify_mode, make_context(None).verify_mode] == [ssl.CERT_REQUIRED] * 2


class Server:
    """A TLS server that ends each connection; `is_taken`: whether its first client finished the handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_taken: Future[bool] = Future()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                is_taken = self._shake_hands(peer)
                if not self.is_taken.done():
                    self.is_taken.set_result(is_taken)

    def _shake_hands(self, peer: socket.socket) -> bool:
        peer.settimeout(10.0)
        try:
            self._context.wrap_socket(peer, server_side=True).close()
        except OSError:
            peer.close()
            return False
        return True


def ask_node(server: Server, ca_file: str | None) -> None:
    host, _, port = server.address.partition(":")
    with Wire(host, int(port), WireSecurity("SSL", ca_file=ca_file), 5.0) as wire:
        wire.api_versions()


def zookeeper_settings(server: Server, ca_file: str | None) -> ZooKeeperSettings:
    return ZooKeeperSettings(server.address, use_tls=True, ca_file=ca_file, connect_timeout=1.0)


def ask_zookeeper(server: Server, ca_file: str | None) -> None:
    with ZooKeeper(zookeeper_settings(server, ca_file)) as zookeeper:
        zookeeper.view(groups=False)


def ask_zookeeper_a_word(server: Server, ca_file: str | None) -> None:
    with ZooKeeper(zookeeper_settings(server, ca_file)) as zookeeper:
        zookeeper.servers()


def begin_session_of_a_consumer(server: Server, ca_file: str | None) -> None:
    session = GroupSession(zookeeper_settings(server, ca_file), lambda _: None, lambda _: None)
    session.start()
    server.is_taken.result(20.0)
    session.close()


def ask_for_a_token(server: Server, ca_file: str | None) -> None:
    token_for(OAuthLogin(f"https://{server.address}/token", "a", "b", "", (), ca_file), "a node", Deadline(5.0))


def call_webhook(server: Server, ca_file: str | None) -> None:
    webhook = WebhookSettings(f"https://{server.address}/restart", ca_file=ca_file)
    default_tls_context.cache_clear()
    asyncio.run(tools._post_within(webhook, {}, 5.0))


CLIENTS = [
    ask_node,
    ask_zookeeper,
    ask_zookeeper_a_word,
    begin_session_of_a_consumer,
    ask_for_a_token,
    call_webhook,
]


@pytest.mark.slow
@pytest.mark.parametrize("ask", CLIENTS)
def test_a_client_with_a_ca_file_trusts_no_authority_of_the_machine(
    ask: Callable[[Server, str | None], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine trusts the server's certificate: without a file of its own a client takes it, with another authority's it must not.

    librdkafka is not here: without a file it reads the machine's store from paths that no test can set.
    """
    (tmp_path / "other").mkdir()
    of_machine, other = Authority(tmp_path), Authority(tmp_path / "other")
    monkeypatch.setenv("SSL_CERT_FILE", of_machine.ca)
    for ca_file, is_taken in ((None, True), (of_machine.ca, True), (other.ca, False)):
        with Server(of_machine.server()) as server:
            with contextlib.suppress(Exception):
                ask(server, ca_file)
            assert server.is_taken.result(20.0) is is_taken, ca_file


PASSWORD = "opens-it-canary"


def encrypted(key: str, form: serialization.PrivateFormat, path: Path) -> str:
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    path.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(PASSWORD.encode()))
    )
    return str(path)


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize(
    ("password", "said"), [("wrong-canary", "the password does not open it"), (None, "there is no password")]
)
def test_a_key_that_does_not_open_is_named_with_what_is_missing(
    tmp_path: Path, form: serialization.PrivateFormat, password: str | None, said: str
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    path = encrypted(key, form, tmp_path / "closed.key")
    for settings in (
        WireSecurity("SSL", authority.ca, certificate, path, password),
        ZooKeeperSettings(
            "zk:2281", use_tls=True, ca_file=authority.ca, cert_file=certificate, key_file=path, key_password=password
        ),
    ):
        with pytest.raises(AuthenticationFailed, match=rf"the key in {path} is encrypted, and {said}") as error:
            tls_context(settings)
        assert "canary" not in str(error.value)
    tls_context(WireSecurity("SSL", authority.ca, certificate, path, PASSWORD))


def test_each_file_that_is_another_one_is_named_by_what_it_has_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    _, other = authority.issue("other")
    java = tmp_path / "client.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    cases = {
        f"the key in {other} is not that of the certificate": WireSecurity("SSL", authority.ca, certificate, other),
        f"{certificate} has no key (PEM)": WireSecurity("SSL", authority.ca, certificate),
        f"{key} has no certificate (PEM)": WireSecurity("SSL", authority.ca, key, key),
        f"{java} has no certificate (PEM)": WireSecurity("SSL", str(java)),
        f"{java} is no PKCS#12 file": WireSecurity("SSL", authority.ca, key_store=str(java), key_password="x"),
        "No such file or directory": WireSecurity("SSL", str(tmp_path / "gone")),
    }
    for said, settings in cases.items():
        with pytest.raises(AuthenticationFailed, match=re.escape(said)):
            tls_context(settings)
