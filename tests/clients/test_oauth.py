"""Tokens of OAUTHBEARER: a real token endpoint, one that is away, and hostile ones."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from fake_node import FakeNode  # type: ignore[import-not-found]
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from airflow_provider_kmigrate.clients import oauth
from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.settings import OAuthLogin, WireSecurity
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable, Unreachable
from tests.kit.token_server import TokenServer, running
from tests.waiting import refusing_port

SECRET, WHAT = "canary-s3cr3t", "k:9092 SASL OAUTHBEARER"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    with running(tmp_path_factory.mktemp("tokens"), {"kmigrate": SECRET}) as there:
        yield there


@pytest.fixture(autouse=True)
def no_tokens() -> None:
    oauth._tokens.clear()
    oauth._locks.clear()


def login(url: str, secret: str = SECRET) -> OAuthLogin:
    return OAuthLogin(url, "kmigrate", secret, "kafka")


def has_token(login: OAuthLogin, seconds: float) -> bool:
    try:
        return bool(oauth.token_for(login, WHAT, Deadline(seconds)))
    except Unavailable:
        return False


def claims_of(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


class TestEndpoint:
    def test_a_token_is_asked_for_once_and_kept(self, server: TokenServer) -> None:
        before = server.times_asked()
        token = oauth.token_for(login(server.url), WHAT, Deadline(5.0))
        assert (claims_of(token)["sub"], claims_of(token)["scope"]) == ("kmigrate", "kafka")
        assert oauth.token_for(login(server.url), WHAT, Deadline(5.0)) == token
        assert server.times_asked() == before + 1

    def test_a_token_that_a_node_refused_is_not_used_again(self, server: TokenServer) -> None:
        before = server.times_asked()
        oauth.token_for(login(server.url), WHAT, Deadline(5.0))
        oauth.drop_token(login(server.url))
        oauth.token_for(login(server.url), WHAT, Deadline(5.0))
        assert server.times_asked() == before + 2

    def test_a_refused_client_is_named_and_its_secret_is_not(self, server: TokenServer) -> None:
        with pytest.raises(
            AuthenticationFailed, match=r"token endpoint http://127\.0\.0\.1:\d+/token refuses.*401 invalid_client"
        ) as error:
            oauth.token_for(login(server.url, "wrong-canary"), WHAT, Deadline(5.0))
        assert "wrong-canary" not in str(error.value)
        assert error.value.reasons[0].code == "U09"

    def test_an_endpoint_that_is_away_is_named(self) -> None:
        with refusing_port() as port, pytest.raises(Unreachable, match=r"token endpoint .* does not answer") as error:
            oauth.token_for(login(f"http://127.0.0.1:{port}/token"), WHAT, Deadline(5.0))
        assert SECRET not in str(error.value)

    def test_an_endpoint_that_says_nothing_costs_the_deadline_only(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                oauth.token_for(login(f"http://127.0.0.1:{silent.getsockname()[1]}/"), WHAT, Deadline(0.5))
            assert time.monotonic() - began < 3.0

    def test_a_valid_token_outlives_an_endpoint_that_is_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A minute without the endpoint in the middle of a roll."""
        with refusing_port() as port:
            away = login(f"http://127.0.0.1:{port}/token")
            now = time.monotonic()
            oauth._tokens[away] = oauth._Token("kept", now - 1.0, now + 60.0)
            assert oauth.token_for(away, WHAT, Deadline(5.0)) == "kept"
            oauth._tokens[away] = oauth._Token("ended", now - 2.0, now - 1.0)
            with pytest.raises(Unreachable):
                oauth.token_for(away, WHAT, Deadline(5.0))

    def test_a_valid_token_outlives_an_endpoint_that_refuses_and_the_refusal_is_named_after_it(self, server: TokenServer) -> None:
        """A proxy may answer 404 while its endpoint is away; the brokers decide whether the token is valid."""
        refused, now = login(server.url, "wrong-canary"), time.monotonic()
        oauth._tokens[refused] = oauth._Token("kept", now - 1.0, now + 60.0)
        assert oauth.token_for(refused, WHAT, Deadline(5.0)) == "kept"
        oauth._tokens[refused] = oauth._Token("ended", now - 2.0, now - 1.0)
        with pytest.raises(AuthenticationFailed, match="401 invalid_client"):
            oauth.token_for(refused, WHAT, Deadline(5.0))

    @pytest.mark.parametrize("fault", ["away", "hanging"])
    def test_the_real_server_without_an_answer_is_named_by_mechanism_and_endpoint(self, server: TokenServer, fault: str) -> None:
        with getattr(server, fault)():
            with pytest.raises(Unavailable, match=rf"SASL OAUTHBEARER: the token endpoint {server.url}.*(answer)") as error:
                oauth.token_for(login(server.url), WHAT, Deadline(1.0))
            assert [reason.code for reason in error.value.reasons] == ["U09"]
            assert SECRET not in str(error.value)
        assert oauth.token_for(login(server.url), WHAT, Deadline(5.0))

    def test_a_valid_token_outlives_an_endpoint_that_hangs_and_leaves_the_call_its_time(self, server: TokenServer) -> None:
        ours, deadline, now = login(server.url), Deadline(20.0), time.monotonic()
        oauth._tokens[ours] = oauth._Token("kept", now - 1.0, now + 60.0)
        with server.hanging():
            before = server.times_asked()
            assert oauth.token_for(ours, WHAT, deadline) == "kept"
            assert deadline.seconds_left() > 10.0
            assert oauth.token_for(ours, WHAT, deadline) == "kept"
            assert server.times_asked() == before + 1, "it is not asked again at each login"
            assert oauth._tokens[ours].renew_at <= now + 60.0, "but before the token's end"

    def test_logins_while_the_endpoint_hangs_wait_no_longer_than_their_deadlines_and_are_named(self, server: TokenServer) -> None:
        said = list[KMigrateError]()

        def log_in() -> None:
            try:
                oauth.token_for(login(server.url), WHAT, Deadline(1.0))
            except KMigrateError as error:
                said.append(error)

        with server.hanging():
            threads = [threading.Thread(target=log_in) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20.0)
            assert len(said) == 4
            assert {reason.code for error in said for reason in error.reasons} == {"U09"}
            assert all("SASL OAUTHBEARER" in str(error) and "token endpoint" in str(error) for error in said)

    @pytest.mark.slow
    def test_an_endpoint_that_hangs_holds_up_no_login_to_another_one(self, server: TokenServer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hung = login(f"http://127.0.0.1:{silent.getsockname()[1]}/")
            waiting = threading.Thread(target=lambda: has_token(hung, 5.0))
            waiting.start()
            silent.accept()
            assert oauth.token_for(login(server.url), WHAT, Deadline(2.0))
            assert waiting.is_alive()
            waiting.join(20.0)

    def test_a_node_whose_token_endpoint_hangs_costs_the_calls_time_only(self, server: TokenServer) -> None:
        with FakeNode(Node().handlers) as served, server.hanging():
            security = WireSecurity("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", oauth=login(server.url))
            began = time.monotonic()
            with (
                Wire("127.0.0.1", served.port, security, timeout=1.0) as wire,
                pytest.raises(Unavailable, match="token endpoint") as error,
            ):
                wire.metadata()
            assert time.monotonic() - began < 10.0
            assert [reason.code for reason in error.value.reasons] == ["U09"]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("status", "body", "error"),
        [
            (200, b"", Unreachable),
            (200, b"[]", Unreachable),
            (200, b"[" * 60_000, Unreachable),
            (200, b'{"access_token": 7}', Unreachable),
            (200, b'{"access_token": ""}', Unreachable),
            (200, b'{"access_token": "a\\u0001b"}', Unreachable),
            (500, b'{"access_token": "x"}', Unreachable),
            (429, b"{}", Unreachable),
            (302, b"{}", Unreachable),
            (400, json.dumps({"error": f"\x1b[2J {SECRET}", "error_description": SECRET}).encode(), AuthenticationFailed),
            (403, b"\xff", AuthenticationFailed),
        ],
    )
    def test_a_hostile_answer_is_no_token_and_is_not_quoted(self, status: int, body: bytes, error: type[KMigrateError]) -> None:
        with answering(status, body) as asked:
            with pytest.raises(error) as caught:
                oauth.token_for(login(asked.url), WHAT, Deadline(5.0))
            assert SECRET not in str(caught.value)
            assert "\x1b" not in str(caught.value)
            assert len(asked.requests) == (3 if error is Unreachable else 1), "bounded, and a refusal is not asked again"

    @pytest.mark.parametrize(
        ("expires_in", "least", "most"), [(100, 79, 81), ("100", 79, 81), (None, 40, 50), (-5, -1, 0), (1e12, 69_000, 69_200)]
    )
    def test_a_token_is_renewed_before_it_ends(self, expires_in: Any, least: float, most: float) -> None:
        with answering(200, json.dumps({"access_token": "opaque", "expires_in": expires_in}).encode()) as asked:
            oauth.token_for(login(asked.url), WHAT, Deadline(5.0))
            assert least <= oauth._tokens[login(asked.url)].renew_at - time.monotonic() <= most


class TestFixedToken:
    def test_one_that_has_ended_is_named_by_when(self) -> None:
        ended = jwt.encode({"sub": "kmigrate", "exp": 1_700_000_000}, "k" * 32)
        with pytest.raises(AuthenticationFailed, match=r"sasl\.oauthbearer\.token ended at 2023-11-14") as error:
            oauth.token_for(OAuthLogin(token=ended), WHAT, Deadline(1.0))
        assert ended not in str(error.value)

    @pytest.mark.parametrize("end", [-1, -1e18, -1e300])
    def test_one_whose_end_no_calendar_has_is_refused_too(self, end: float) -> None:
        ended = jwt.encode({"sub": "kmigrate", "exp": end}, "k" * 32)
        with pytest.raises(AuthenticationFailed, match="ended at 1970-01-01"):
            oauth.token_for(OAuthLogin(token=ended), WHAT, Deadline(1.0))

    @pytest.mark.parametrize("token", ["opaque", "a.b.c", "a.W10.c", "a.eyJleHAiOiJ4In0.c"])
    def test_one_that_says_no_end_is_sent_as_it_is(self, token: str) -> None:
        assert oauth.token_for(OAuthLogin(token=token), WHAT, Deadline(1.0)) == token

    def test_no_secret_in_a_repr(self) -> None:
        assert SECRET not in repr(OAuthLogin("https://id", "c", SECRET, token=SECRET))


class Node:
    """The node's half of OAUTHBEARER (RFC 7628), as Kafka answers it."""

    def __init__(self, *valid: str) -> None:
        self.valid, self.seen = valid, list[bytes]()
        peer = MetadataResponse.MetadataResponseBroker(node_id=0, host="h", port=1, rack=None)
        self.handlers = {
            17: SaslHandshakeResponse(error_code=0, mechanisms=["OAUTHBEARER"]),
            36: self._step,
            3: MetadataResponse(brokers=[peer], cluster_id="c", controller_id=0, topics=[]),
        }

    def _step(self, request: Any) -> SaslAuthenticateResponse:
        message = bytes(request.auth_bytes)
        self.seen.append(message)
        if message == b"\1":
            return SaslAuthenticateResponse(
                error_code=58, error_message='{"status":"invalid_token"}', auth_bytes=b"", session_lifetime_ms=0
            )
        ok = message in {b"n,,\1auth=Bearer " + token.encode() + b"\1\1" for token in self.valid}
        return SaslAuthenticateResponse(
            error_code=0, error_message=None, auth_bytes=b"" if ok else b'{"status":"invalid_token"}', session_lifetime_ms=0
        )


class TestExchange:
    def test_a_valid_token(self) -> None:
        node = Node("fixed")
        with FakeNode(node.handlers) as served:
            security = WireSecurity("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", oauth=OAuthLogin(token="fixed"))
            assert Wire("127.0.0.1", served.port, security).metadata().cluster_id == "c"

    def test_a_refused_token_is_dropped_and_not_shown(self) -> None:
        with (
            FakeNode(Node("other").handlers) as served,
            answering(200, b'{"access_token": "canary-t0ken", "expires_in": 900}') as asked,
        ):
            security = WireSecurity("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", oauth=login(asked.url))
            with pytest.raises(AuthenticationFailed, match=r"SASL OAUTHBEARER.*invalid_token") as error:
                Wire("127.0.0.1", served.port, security).metadata()
            assert "canary-t0ken" not in str(error.value)
            assert security.oauth not in oauth._tokens

    def test_without_a_source_of_tokens(self) -> None:
        with FakeNode(Node().handlers) as served, pytest.raises(AuthenticationFailed, match="token endpoint or a token"):
            Wire("127.0.0.1", served.port, WireSecurity("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")).metadata()


class answering:  # noqa: N801 - reads as a statement
    """An HTTP server with one answer for everything."""

    def __init__(self, status: int, body: bytes) -> None:
        self.requests = requests = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                requests.append(self.path)
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> SimpleNamespace:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return SimpleNamespace(url=self.url, requests=self.requests)

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
