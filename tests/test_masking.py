"""No secret of a connection is in an error, a journal or an XCom, whoever said it; each test plants one at a boundary."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from airflow_provider_kmigrate import exceptions, masking
from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.clients.connections import host_settings, secrets_of, webhook_settings
from airflow_provider_kmigrate.clients.hosts import agent, answers
from airflow_provider_kmigrate.clients.settings import HostSettings
from airflow_provider_kmigrate.clients.tools import Instances
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, InstanceSpec, NotifierSpec
from airflow_provider_kmigrate.core.migration.plan_document import seal
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Unreachable
from airflow_provider_kmigrate.hooks.connections import get_connection
from airflow_provider_kmigrate.notifications import messages
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier
from airflow_provider_kmigrate.steps.journal import FileJournal
from airflow_provider_kmigrate.utils.status_xcom import STATUS, StatusXCom

CANARY = "canary-4b1d9"
GROUP = GroupSpec("billing", (), switch_timeout=5.0, conn_id="apps")
fake: Any = SimpleNamespace
ERRORS = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, KMigrateError)]


@pytest.fixture(autouse=True)
def only_these_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value of another test."""
    monkeypatch.setattr(masking, "_hidden", {})


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


def test_a_status_is_found_by_its_clusters_name_also_if_a_header_has_it() -> None:
    masking.hide_values(["k8s-prod-eu"])
    pushed: list[Any] = []
    StatusXCom(fake(xcom_push=lambda key, value: pushed.append(value))).store(
        {"kind": "status", "cluster": "k8s-prod-eu", "alarms": None, "text": "k8s-prod-eu"}
    )
    assert pushed == [{"kind": "status", "cluster": "k8s-prod-eu", "alarms": None, "text": "***"}]


def test_a_plan_whose_words_are_masked_is_not_shown_as_altered() -> None:
    masking.hide_values([CANARY])
    pushed: list[Any] = []
    StatusXCom(fake(xcom_push=lambda key, value: pushed.append(value))).store_plan(seal({"of": "migration", "steps": [CANARY]}))
    assert pushed == [seal({"of": "migration", "steps": ["***"]})]


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
    with pytest.raises(Failed, match="exit code 3: ") as raised:
        run_switch(said)
    assert CANARY not in str(raised.value)


def run_switch(said: str) -> None:
    """A switch command that fails with these words."""
    switch = (sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1]); sys.exit(3)", said)
    Instances("prod", {"apps": HostSettings({})}, {}).switch(GROUP, InstanceSpec("a", switch=switch), "kafka", 1)


@pytest.mark.parametrize(
    "text",
    [
        'sasl.jaas.config=x.PlainLoginModule required username="u" password="S3CRET";',
        "ssl.key.password: S3CRET",
        "'ssl.keystore.key' = 'S3CRET'",
        '{"kafka.sasl.password": "S3CRET"}',
        "spark://user:S3CRET@host:7077",
        "-----BEGIN PRIVATE KEY-----\nS3CRET\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nS3CRET",
        "fs.s3a.secret.key=S3CRET",
        "client_secret=S3CRET&x=1",
        "sasl.jaas.config = S3CRET",
        "> Authorization: Bearer S3CRET",
        "+ curl -H 'authorization: Basic S3CRET' https://host",
        '{"Authorization": "Bearer S3CRET"}',
        "Proxy-Authorization: S3CRET",
        "X-Api-Key: S3CRET",
        "export STORAGE_ACCOUNT_KEY=S3CRET",
        "passphrase = S3CRET",
        "redis://:S3CRET@host",
        "https://ann:p@S3CRET@host/x",
        "+ mysql --password S3CRET -e 'select 1'",
        "+ curl -u ann:S3CRET https://host",
        "+ tool --api-key 'S3CRET two'",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert "S3CRET" not in masking.mask_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "the secret is out",
        "Not authorized: Describe on topic orders",
        "/x/tokens.json holds 3 clusters",
        "+ sudo -u kafka ls",
        "https://host:9093/a@b",
    ],
)
def test_words_about_secrets_stay(text: str) -> None:
    assert masking.mask_secrets(text) == text


def test_a_short_secret_is_a_part_of_other_words_and_a_long_one_is_masked_before_its_parts() -> None:
    masking.hide_values(["kafka-0", "orders-1", "orders-1-canary"])
    assert masking.mask("kafka-0 has orders-1-canary") == "kafka-0 has ***"


def test_a_connection_that_airflow_reads_is_hidden_whoever_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's is used by Spark's own hook."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "spark", "extra": {"spark.auth.token": CANARY}}))
    get_connection("lake", "spark")
    assert masking.mask(CANARY) == "***"


def test_a_known_secret_is_masked_as_a_whole_before_what_looks_like_one() -> None:
    """What looks like a secret ends at a semicolon, and a known one may have one."""
    masking.hide_values(["one;canary"])
    assert masking.mask_words("password=one;canary") == "password=***"


@pytest.mark.parametrize("name", ["APP_PASSWORD=", "note "])
def test_a_secret_that_is_cut_in_the_middle_leaves_no_piece_of_a_commands_words(name: str) -> None:
    masking.hide_values([CANARY])
    said = f"{name}{CANARY} {'x' * (commands._SHOWN - 8)}"
    assert said[-commands._SHOWN :].startswith(CANARY[-7:])
    with pytest.raises(Failed) as raised:
        run_switch(said)
    assert CANARY[-7:] not in str(raised.value)
    with pytest.raises(Failed) as raised:
        commands.run([sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", said], 60.0, "it")
    assert CANARY[-7:] not in str(raised.value)


@pytest.mark.parametrize(
    "show",
    [
        lambda words: str(agent._error_of_ended_pipe("broker 0", fake(ending=lambda _: (0, words)), 1.0)),
        lambda words: answers.text_of({"text": words}),
        lambda words: agent.AgentHost(fake(ask=lambda *_, **__: {"log": words}), "id").log_tail(fake(name="a", role="broker")),
        lambda words: agent._restart_loop_log(
            {"unit": {"SubState": "auto-restart"}, "process": {"since": 0.0}, "failing": words}
        ),
    ],
    ids=["stderr of an agent", "an agent's error", "the end of a log", "the log of a unit that ends again and again"],
)
def test_the_words_of_a_machine_lose_what_looks_like_a_secret(show: Callable[[str], str]) -> None:
    assert show(f"ssl.key.password={CANARY} is wrong").endswith("ssl.key.password=*** is wrong")


def test_a_webhooks_answer_is_cut_only_after_its_secrets_are_masked(webhook_service: str) -> None:
    """The service repeats a header, at the end of what is shown of its answer."""
    connection = {"conn_type": "http", "host": f"{webhook_service}/x", "extra": {"X-Repeat": CANARY}}
    settings = webhook_settings("deployer", connection, tls=False)
    with pytest.raises(Failed, match="answered 500: xxx") as raised:
        Instances("prod", {}, {"deployer": settings}).switch(
            replace(GROUP, conn_id=""), InstanceSpec("a", "h", webhook="deployer"), "kafka", 1
        )
    assert CANARY[:7] not in str(raised.value)
    assert str(raised.value).endswith(f"{'x' * 493}***yyyy")


def test_threads_that_hide_values_at_once_lose_none() -> None:
    """A thread that wrote what it had read before another one's values would undo them."""
    values = [[f"canary-{thread}-{number:04}" for number in range(500)] for thread in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(values)) as pool:
            list(pool.map(lambda mine: [masking.hide_values([value]) for value in mine], values))
    finally:
        sys.setswitchinterval(interval)
    assert [value for mine in values for value in mine if masking.mask(value) != "***"] == []


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


def test_httpx_does_not_log_addresses_where_airflow_does_not_quieten_it() -> None:
    program = (
        "import logging, airflow_provider_kmigrate.clients.tools; print(logging.getLogger('httpx').isEnabledFor(logging.INFO))"
    )
    program = f"import logging; logging.basicConfig(level='INFO'); {program}"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "False\n"


@pytest.fixture
def webhook_service() -> Iterator[str]:
    """A web service in a process of its own: it answers every call with 202, or 500 and the header that it is to repeat."""
    program = """
import http.server as s
class H(s.BaseHTTPRequestHandler):
    def do_POST(self):
        said = self.headers.get("X-Repeat")
        self.rfile.read(int(self.headers["Content-Length"])); self.send_response(500 if said else 202); self.end_headers()
        if said: self.wfile.write(b"x" * 493 + said.encode() + b"y" * 999)
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
        {"host": f"ann:{CANARY}@deployer/x"},
        {"host": f"https://{CANARY}@deployer/x"},
        {"host": f"deployer/hooks/{CANARY}/x"},
        {"host": "https://deployer", "extra": {"Authorization": f"Bearer {CANARY}"}},
        {"host": "https://deployer", "extra": json.dumps({"X-Our-Own": CANARY})},
        {"host": "https://deployer", "extra": {"X-Auth": f"Key {CANARY}"}},
        {"conn_type": "aws", "extra": {"aws_secret_access_key": CANARY}},
        {"conn_type": "wasb", "extra": {"connection_string": f"AccountName=x;AccountKey={CANARY}"}},
        {"conn_type": "wasb", "extra": {"account_key": CANARY}},
        {"conn_type": "spark", "extra": {"api-key": CANARY}},
        {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": json.dumps({"private_key": CANARY})}},
    ],
)
def test_secrets_have_many_names(connection: dict[str, Any]) -> None:
    assert CANARY in secrets_of({"conn_type": "http", **connection})


def test_a_word_of_a_passphrase_is_no_secret_of_its_own() -> None:
    assert "elephants" not in secrets_of({"conn_type": "http", "login": "ann", "password": "correct elephants"})


def test_the_path_in_an_ensemble_is_no_secret() -> None:
    assert secrets_of({"conn_type": "kmigrate_zookeeper", "host": "zk1:2181,zk2:2181/kafka-4b1d9"}) == ()


@pytest.mark.parametrize(
    ("connection", "forms"),
    [
        ({"extra": {"X-Our-Own": "a%2Fb+canary"}}, {"a%2Fb+canary"}),
        ({"host": "https://deployer/x?whatever=a%2F7b+canary"}, {"a%2F7b+canary", "a/7b+canary", "a/7b canary"}),
        ({"host": "https://ann:a%2Fb-canary@deployer"}, {"a%2Fb-canary", "a/b-canary"}),
        ({"login": "ann", "password": CANARY}, {b64encode(f"ann:{CANARY}".encode()).decode()}),
    ],
    ids=["a header", "a query", "a password in an address", "a login"],
)
def test_a_secret_is_hidden_as_it_is_sent_and_as_it_is_read(connection: dict[str, Any], forms: set[str]) -> None:
    """A service may repeat a call as it came, or what it read of it."""
    assert forms <= {*secrets_of({"conn_type": "http", "host": "https://deployer", **connection})}


def test_a_long_number_in_a_header_takes_no_longer_than_words() -> None:
    """Each way to part its digits would be tried: two to the power of thirty."""
    value = f"key{'1' * 60}!"
    assert value in secrets_of({"conn_type": "http", "host": "https://deployer", "extra": {"X-Our-Own": value}})


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
    target = NotifierSpec(f"{__name__}.Chat", {"hook": {"all": ["https://chat.example/T0/canary"]}, "words": "see https://wiki"})
    assert ClusterNotifier((target,), "", "", "").send({}, "title", "text")
    assert "https://chat.example/T0/canary" in masked
    assert "see https://wiki" not in masked


@pytest.mark.parametrize("value", ["orders-prod", "production", "Europe West 1", "team-b.eu-west-1", "orders-2024"])
def test_plain_words_of_a_webhook_stay_for_a_cluster_may_be_named_so(value: str) -> None:
    """A status is found by its cluster's name, which no mask may take away."""
    connection = {"conn_type": "http", "host": f"https://hook.example/?env={value}", "extra": json.dumps({"X-Cluster": value})}
    assert value not in secrets_of(connection)


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "X-Auth-Token", "password"])
def test_a_weak_secret_is_hidden_where_its_name_says_what_it_is(name: str) -> None:
    assert "orders-prod" in secrets_of({"conn_type": "http", "host": "hook.example", "extra": json.dumps({name: "orders-prod"})})
