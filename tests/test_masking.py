"""No secret of a connection is in an error, a journal or an XCom, whoever said it; each test plants one at a boundary."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from airflow_provider_kmigrate import exceptions, masking
from airflow_provider_kmigrate.clients.connections import host_settings, secrets_of, webhook_settings
from airflow_provider_kmigrate.clients.settings import HostSettings
from airflow_provider_kmigrate.clients.tools import Instances
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, InstanceSpec, NotifierSpec
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Unreachable
from airflow_provider_kmigrate.notifications import messages
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier
from airflow_provider_kmigrate.steps.journal import FileJournal
from airflow_provider_kmigrate.utils.status_xcom import STATUS, StatusXCom

CANARY = "canary-4b1d9"
GROUP = GroupSpec("billing", (), switch_timeout=5.0, conn_id="apps")
ERRORS = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, KMigrateError)]


@pytest.fixture(autouse=True)
def only_these_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value of another test."""
    monkeypatch.setattr(masking, "_hidden", ())


def test_reading_a_connection_hides_its_secrets_from_every_error() -> None:
    host_settings("apps", {"conn_type": "kmigrate_host", "extra": {"secret_environment": {"TOKEN": CANARY}}})
    reason = Reason("N03", f"the node said {CANARY}")
    for kind in ERRORS:
        error = kind(f"it said {CANARY}", [reason])
        assert str(error) == "it said ***"
        assert CANARY not in f"{error!r} {error.reasons} {kind.because(reason)}"


def test_a_journal_and_a_status_have_none_in_any_of_their_facts(tmp_path: Path) -> None:
    masking.hide_values([CANARY])
    facts: dict[str, Any] = {"text": f"a {CANARY}", "rows": [{"deep": [f"b {CANARY}"]}, 1, None], "pair": (CANARY,)}
    FileJournal(tmp_path / "run.jsonl", "run", lambda: 1.0).write("act", "step", f"x {CANARY}", facts=facts)
    written = (tmp_path / "run.jsonl").read_text()
    assert json.loads(written)["facts"] == {"text": "a ***", "rows": [{"deep": ["b ***"]}, 1, None], "pair": ["***"]}
    assert CANARY not in written

    class TaskInstance:
        pushed: Any = None

        def xcom_push(self, key: str, value: Any) -> None:
            self.pushed = key, value

    StatusXCom(ti := TaskInstance()).store({"alarms": None, **facts})
    assert ti.pushed[0] == STATUS
    assert CANARY not in json.dumps(ti.pushed)


@pytest.mark.parametrize(
    "said",
    [
        "+ curl -H 'X-Token: canary-4b1d9'",
        "export APP_PASSWORD=canary-4b1d9",
        "https://ann:canary-4b1d9@host/x",
        "-----BEGIN PRIVATE KEY-----\ncanary-4b1d9",
        '{"client_secret": "canary-4b1d9"}',
    ],
)
def test_the_last_words_of_a_command_lose_what_looks_like_a_secret(said: str) -> None:
    """It may know one of its own, which no connection has."""
    switch = (sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1]); sys.exit(3)", said)
    with pytest.raises(Failed, match="exit code 3: ") as raised:
        Instances("prod", {"apps": HostSettings({})}, {}).switch(GROUP, InstanceSpec("a", switch=switch), "kafka", 1)
    assert CANARY not in str(raised.value)


def test_a_webhooks_address_is_in_no_log(caplog: pytest.LogCaptureFixture, webhook_service: str) -> None:
    """httpx logs each address as information, with its query, and so does a task of Airflow."""
    caplog.set_level(logging.INFO)
    settings = webhook_settings("deployer", {"conn_type": "http", "host": f"{webhook_service}/x?key={CANARY}"}, tls=False)
    instances = Instances("prod", {}, {"deployer": settings})
    instances.switch(replace(GROUP, conn_id=""), InstanceSpec("a", "h", webhook="deployer"), "kafka", 1)
    instances = Instances("prod", {}, {"deployer": replace(settings, url=f"http://127.0.0.1:1/x?key={CANARY}")})
    with pytest.raises(Unreachable):
        instances.switch(replace(GROUP, conn_id=""), InstanceSpec("a", "h", webhook="deployer"), "kafka", 1)
    assert CANARY not in caplog.text


@pytest.fixture
def webhook_service() -> Iterator[str]:
    """A web service in a process of its own, which answers every call with 202."""
    program = """
import http.server as s
class H(s.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"])); self.send_response(202); self.end_headers()
    def log_message(self, *_): pass
server = s.HTTPServer(("127.0.0.1", 0), H)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout
        yield f"http://127.0.0.1:{service.stdout.readline().strip()}"
        service.kill()


@pytest.mark.parametrize(
    "connection",
    [
        {"host": f"https://ann:{CANARY}@deployer/x"},
        {"host": f"https://deployer/x?whatever={CANARY}"},
        {"host": "https://deployer", "extra": {"Authorization": f"Bearer {CANARY}"}},
        {"host": "https://deployer", "extra": json.dumps({"X-Our-Own": CANARY})},
        {"conn_type": "aws", "extra": {"aws_secret_access_key": CANARY}},
        {"conn_type": "wasb", "extra": {"connection_string": f"AccountName=x;AccountKey={CANARY}"}},
        {"conn_type": "wasb", "extra": {"account_key": CANARY}},
        {"conn_type": "spark", "extra": {"api-key": CANARY}},
    ],
)
def test_secrets_have_many_names(connection: dict[str, Any]) -> None:
    assert any(CANARY in secret for secret in secrets_of({"conn_type": "http", **connection}))


def test_a_header_that_says_a_kind_of_content_is_no_secret() -> None:
    assert (
        secrets_of({"conn_type": "http", "host": "https://d", "extra": {"Content-Type": "application/json", "verify": "/ca.pem"}})
        == ()
    )


class Chat(BaseNotifier):
    """A notifier whose address is a secret, by a name that does not say so."""

    def __init__(self, hook: str, words: str) -> None:
        super().__init__()
        self.hook, self.words = hook, words

    def notify(self, context: Any) -> None:
        """Send nothing."""


def test_an_address_among_a_notifiers_arguments_is_masked_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat's webhook is a secret as a whole, and the error of a notifier shows it; Airflow masks what is called a secret alone."""
    masked: list[object] = []
    monkeypatch.setattr(messages, "mask_secret", masked.append)
    target = NotifierSpec(f"{__name__}.Chat", {"hook": "https://chat.example/T0/canary", "words": "none"})
    assert ClusterNotifier((target,), "", "", "").send({}, "title", "text")
    assert "https://chat.example/T0/canary" in masked
    assert "none" not in masked


@pytest.mark.parametrize("value", ["orders-prod", "production", "Europe West 1", "team-b.eu-west-1"])
def test_plain_words_of_a_webhook_stay_for_a_cluster_may_be_named_so(value: str) -> None:
    """A status is found by its cluster's name, which no mask may take away."""
    connection = {"conn_type": "http", "host": f"https://hook.example/?env={value}", "extra": json.dumps({"X-Cluster": value})}
    assert value not in secrets_of(connection)


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "X-Auth-Token", "password"])
def test_a_weak_secret_is_hidden_where_its_name_says_what_it_is(name: str) -> None:
    assert "orders-prod" in secrets_of({"conn_type": "http", "host": "hook.example", "extra": json.dumps({name: "orders-prod"})})
