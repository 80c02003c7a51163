"""Restarting instances: a real command, a real web service, and everything that either may answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.connections import lookup_in, settings_for, webhook_settings
from airflow_provider_kmigrate.clients.settings import HostSettings, WebhookSettings
from airflow_provider_kmigrate.clients.tools import Instances, connection_facts
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec, InstanceSpec
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut, Unreachable

CANARY = "canary-7f3a"
GROUP = GroupSpec("billing", (), switch_timeout=5.0, conn_id="apps")


@pytest.fixture
def service() -> Iterator[Any]:
    """A web service that keeps what it received; its `status` and `delay` may be set, and that its answer `trickles` without an end."""
    reported: list[tuple[dict[str, Any], dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reported.append((json.loads(body), dict(self.headers)))
            threading.Event().wait(server.delay)  # type: ignore[attr-defined]
            self.send_response(server.status)  # type: ignore[attr-defined]
            if server.location:  # type: ignore[attr-defined]
                self.send_header("Location", server.location)  # type: ignore[attr-defined]
            self.end_headers()
            with suppress(OSError):  # the client has gone
                while server.trickles:  # type: ignore[attr-defined]
                    self.wfile.write(b".")
                    threading.Event().wait(0.05)
                self.wfile.write(b"no such instance" if server.status >= 400 else b"ok")  # type: ignore[attr-defined]

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.delay, server.trickles, server.posted = 202, 0.0, False, reported  # type: ignore[attr-defined]
    server.location = ""  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.trickles = False  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join(5)


def instances(webhook: WebhookSettings | None = None) -> Instances:
    return Instances("prod", {"apps": HostSettings({"TOKEN": CANARY})}, {"deployer": webhook} if webhook else {})


def hook(service: Any, **fields: Any) -> WebhookSettings:
    connection = {"conn_type": "http", "host": "127.0.0.1", "port": service.server_address[1], **fields}
    return webhook_settings("deployer", connection, tls=False)


COMMAND = InstanceSpec("app0", switch=("/bin/true",))
WEBHOOK = InstanceSpec("app0", "app0.example.org", webhook="deployer")


class TestCommand:
    def test_a_restart_command_gets_its_placeholders_and_its_environment_and_no_shell(self, tmp_path: Path) -> None:
        script = 'printf "%s " "$@" "$TOKEN" > out; cat out > "$0.done"'
        words = ("sh", "-c", f"cd {tmp_path}; {script}", f"{tmp_path}/x", "{group}", "{instance}", "{host}", "{kind}", "; {kind}")
        instances().switch(GROUP, InstanceSpec("app0", "app0.example.org", words), "kafka", 3)
        assert (tmp_path / "out").read_text() == f"billing app0 app0.example.org kafka ; kafka {CANARY} "

    @pytest.mark.parametrize(
        ("words", "error", "text"),
        [
            (("sh", "-c", "echo broken >&2; exit 4"), Failed, "exit code 4: broken"),
            (("sh", "-c", "echo lost >&2; exit 255"), Unreachable, "no connection: lost"),
            (("no-such-program-here",), Failed, "no-such-program-here"),
            (("sleep", "60"), TimedOut, "did not end within 0 s"),
        ],
    )
    def test_what_it_may_answer(self, words: tuple[str, ...], error: type[Exception], text: str) -> None:
        group = replace(GROUP, switch_timeout=0.3) if words[0] == "sleep" else GROUP
        with pytest.raises(error, match=text) as raised:
            instances().switch(group, InstanceSpec("app0", switch=words), "kafka", 3)
        assert CANARY not in str(raised.value)


class TestWebhook:
    def test_a_webhook_receives_every_field(self, service: Any) -> None:
        settings = hook(service, login="ann", password=CANARY, extra={"X-Key": CANARY})
        instances(settings).switch(GROUP, WEBHOOK, "migrating", 7)
        ((body, headers),) = service.posted
        assert body == {
            "cluster": "prod", "group": "billing", "instance": "app0", "host": "app0.example.org", "kind": "migrating", "token": 7,
        }  # fmt: skip
        assert {name.lower(): value for name, value in headers.items()}["x-key"] == CANARY
        assert headers["Authorization"].startswith("Basic ")
        assert CANARY not in repr(settings)

    @pytest.mark.parametrize(
        ("status", "delay", "error", "text"), [(404, 0.0, Failed, "404: no such instance"), (200, 2.0, TimedOut, "0.3 s")]
    )
    def test_what_it_may_answer(self, service: Any, status: int, delay: float, error: type[Exception], text: str) -> None:
        service.status, service.delay = status, delay
        with pytest.raises(error, match=text):
            instances(hook(service)).switch(replace(GROUP, switch_timeout=0.3), WEBHOOK, "kafka", 3)

    def test_an_answer_that_comes_piece_by_piece_has_to_end_in_time(self, service: Any) -> None:
        service.trickles = True
        with pytest.raises(TimedOut, match=r"0\.3 s"):
            instances(hook(service)).switch(replace(GROUP, switch_timeout=0.3), WEBHOOK, "kafka", 3)

    def test_no_service_there(self, service: Any) -> None:
        settings = WebhookSettings(f"http://user:{CANARY}@127.0.0.1:1/x")
        with pytest.raises(Unreachable) as raised:
            instances(settings).switch(GROUP, WEBHOOK, "kafka", 3)
        assert CANARY not in str(raised.value)
        assert raised.value.__cause__ is None
        assert not service.posted

    @pytest.mark.parametrize(
        ("fields", "url"),
        [
            ({"host": "deployer", "schema": "https"}, "https://deployer"),
            ({"host": "https://deployer/restart"}, "https://deployer/restart"),
            ({"host": "https://deployer/restart", "port": 8443}, "https://deployer:8443/restart"),
            ({"host": "deployer", "port": 8443, "schema": "https"}, "https://deployer:8443"),
        ],
    )
    def test_a_webhooks_address_is_built_from_the_fields_of_its_connection(self, fields: dict[str, Any], url: str) -> None:
        assert webhook_settings("deployer", {"conn_type": "http", **fields}).url == url

    @pytest.mark.parametrize("fields", [{"host": "deployer", "port": 8080}, {"host": "http://deployer/x"}])
    def test_one_without_tls_is_refused_unless_the_cluster_file_confirms_it(self, fields: dict[str, Any]) -> None:
        connection = {"conn_type": "http", "login": "ann", "password": CANARY, **fields}
        with pytest.raises(Refused, match=r"N03.*without TLS.*webhook_tls: false") as raised:
            webhook_settings("deployer", connection)
        assert CANARY not in str(raised.value)
        assert webhook_settings("deployer", connection, tls=False).url.startswith("http://deployer")

    @pytest.mark.parametrize(
        "extra", [{"verify": False}, {"verify": "false"}, {"allow_redirects": False}, {"timeout": 3, "cert": "/c"}]
    )
    def test_options_of_another_client_are_no_headers(self, extra: dict[str, Any]) -> None:
        with pytest.raises(Refused, match=f"N03.*{next(iter(extra))}"):
            webhook_settings("deployer", {"conn_type": "http", "host": "https://deployer", "extra": extra})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("X-Key", "a\r\nX-Admin: yes"),
            ("X-Key", "a\nb"),
            ("X-Key", "a\0b"),
            ("X-Key", "sch\u00f6n"),
            ("X-Key", "\u202egnp"),
            ("X-Key: a\r\nX-Admin", "yes"),
            ("X Key", "a"),
            ("X-Key", " a"),
            ("X-Key", "a "),
            ("X-Sch\u00f6n", "a"),
            ("", "a"),
            ("Content-Length", "3"),
            ("transfer-encoding", "chunked"),
            ("HOST", "other"),
        ],
    )
    def test_a_header_that_would_end_the_request_or_begin_another_is_refused(self, name: str, value: str) -> None:
        """httpx would refuse some of them at each try, as if the service were away, and send the others."""
        with pytest.raises(Refused, match=r"N03.*cannot be sent as a header") as raised:
            webhook_settings("deployer", {"conn_type": "http", "host": "https://deployer", "extra": {name: value}})
        assert str(raised.value).isprintable()

    @pytest.mark.parametrize("extra", [{"X-Key": ""}, {"X-Key": 'a b;c="d"'}, {"x.y~z": "1"}, {"X-Number": 3}])
    def test_other_headers_are_sent(self, service: Any, extra: dict[str, Any]) -> None:
        instances(hook(service, extra=extra)).switch(GROUP, WEBHOOK, "kafka", 3)
        ((_, headers),) = service.posted
        assert {name.lower(): value for name, value in headers.items()} | {
            name.lower(): str(value) for name, value in extra.items()
        } == {name.lower(): value for name, value in headers.items()}

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_is_not_followed(self, service: Any, status: int) -> None:
        """It would carry login, headers and token elsewhere, such as to an address that only this machine reaches."""
        service.status, service.location = status, f"http://127.0.0.1:{service.server_address[1]}/again"
        with pytest.raises(Failed, match=f"answered {status}"):
            instances(hook(service)).switch(GROUP, WEBHOOK, "kafka", 3)
        assert len(service.posted) == 1

    @pytest.mark.parametrize("confirmed", [True, False])
    def test_every_group_that_names_it_confirms_it(self, confirmed: bool) -> None:
        groups = tuple(replace(GROUP, instances=(WEBHOOK,), conn_id="", webhook_tls=tls) for tls in (False, not confirmed))
        spec = ClusterSpec("prod", "id", "zk", "kafka", (), (), groups=groups)
        known: dict[str, dict[str, Any]] = {
            "zk": {"conn_type": "kmigrate_zookeeper", "host": "zk1"},
            "kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": "k:1"}},
            "deployer": {"conn_type": "http", "host": "deployer"},
        }
        made = settings_for(spec, known.__getitem__)
        assert [reason.code for reason in connection_facts(made).refused] == ([] if confirmed else ["N03"])
        with nullcontext() if confirmed else pytest.raises(Refused, match="without TLS"):
            Instances("prod", {}, made.webhooks).require(groups[0], must_answer=True)
        with pytest.raises(Unreachable if confirmed else Refused):
            Instances("prod", {}, made.webhooks).switch(groups[0], WEBHOOK, "kafka", 3)

    def test_a_webhook_without_a_connection_stops_its_groups_and_no_rollback_of_the_cluster(self) -> None:
        spec = ClusterSpec("prod", "id", "zk", "kafka", (), (), groups=(replace(GROUP, instances=(WEBHOOK,), conn_id=""),))
        known: dict[str, dict[str, Any]] = {
            "zk": {"conn_type": "kmigrate_zookeeper", "host": "zk1"},
            "kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": "k:1"}},
        }
        made = settings_for(spec, lookup_in(known, spec))
        assert [reason.code for reason in connection_facts(made).refused] == ["N03"]
        with pytest.raises(Refused, match=r"N03.*deployer"):
            Instances("prod", {}, made.webhooks).require(spec.groups[0], must_answer=True)

    def test_a_groups_own_connection_that_is_gone_stops_it_and_no_rollback_of_the_cluster(self) -> None:
        spec = ClusterSpec("prod", "id", "zk", "kafka", (), (), groups=(replace(GROUP, instances=(COMMAND,)),))
        known: dict[str, dict[str, Any]] = {
            "zk": {"conn_type": "kmigrate_zookeeper", "host": "zk1"},
            "kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": "k:1"}},
        }
        made = settings_for(spec, lookup_in(known, spec))
        assert [reason.code for reason in connection_facts(made).refused] == ["N03"]
        found = Instances("prod", made.group_hosts, made.webhooks)
        with pytest.raises(Refused, match=r"N03.*apps"):
            found.require(spec.groups[0], must_answer=True)
        with pytest.raises(Refused, match=r"N03.*apps"):
            found.switch(spec.groups[0], COMMAND, "kafka", 3)

    def test_a_certificate_authority_that_is_gone_is_named(self) -> None:
        settings = WebhookSettings("https://127.0.0.1:1/x", ca_file="/gone/ca.pem")
        with pytest.raises(Failed, match=r"cannot read the CA file /gone/ca\.pem"):
            instances(settings).switch(GROUP, WEBHOOK, "kafka", 3)

    def test_a_webhooks_own_certificate_authority_is_used_and_is_no_header(self) -> None:
        made = webhook_settings(
            "deployer", {"conn_type": "http", "host": "https://d", "extra": {"verify": "/etc/ca.pem", "X-Key": "k"}}
        )
        assert (made.ca_file, made.headers) == ("/etc/ca.pem", {"X-Key": "k"})

    @pytest.mark.parametrize("fields", [{}, {"host": "ftp://x"}, {"host": "https://[::1"}, {"host": "x", "conn_type": "ftp"}])
    def test_no_address(self, fields: dict[str, Any]) -> None:
        with pytest.raises(Refused):
            webhook_settings("deployer", {"conn_type": "http", **fields})
