"""`kmigrate check` finds a notifier that could not send, and sends a test message."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate import check
from airflow_provider_kmigrate.core.cluster_state.spec import NotifierSpec
from airflow_provider_kmigrate.notifications.check import find_notifier_problems
from airflow_provider_kmigrate.spec import loads

FILE = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: prod_zk}
kafka: {conn_id: prod_kafka}
hosts: {properties: /etc/kafka/server.properties, ssh_conn_id: prod_ssh}
brokers: [{id: 0, host: kafka0}]
controllers: [{id: 3000, host: ctl0, log_dir: /var/lib/kraft}]
notify: [{notifier: NOTIFIER, arguments: ARGUMENTS}]
"""
RECORDER = "tests.provider.test_check.Recorder"
SENT: list[str] = []


from airflow.sdk import BaseNotifier, Context  # noqa: E402


class Recorder(BaseNotifier):
    """A notifier that keeps its messages; it fails if it is told to."""

    template_fields = ("text",)

    def __init__(self, text: str, http_conn_id: str = "", fails: bool = False) -> None:
        super().__init__()
        self.text, self.http_conn_id, self.fails = text, http_conn_id, fails

    def notify(self, context: Context) -> None:
        if self.fails:
            raise OSError("no way out")
        SENT.append(self.text)


def text_of(notifier: str, arguments: str) -> str:
    return FILE.replace("NOTIFIER", notifier).replace("ARGUMENTS", arguments)


@pytest.mark.parametrize(
    ("notifier", "arguments", "said"),
    [
        ("no.such.Module", "{}", "no notifier with this import path"),
        ("json.JSONDecoder", "{}", "no notifier with this import path"),
        (RECORDER, "{}", "missing 1 required positional argument: 'text'"),
        (RECORDER, "{text: hunter2, colour: red}", "unexpected keyword argument 'colour'"),
        (RECORDER, "{text: hunter2, http_conn_id: absent}", "no connection absent"),
    ],
)
def test_a_notifier_that_could_not_send_is_found(notifier: str, arguments: str, said: str) -> None:
    (problem,) = find_notifier_problems(loads(text_of(notifier, arguments)))
    assert problem.code == "F08"
    assert said in problem.text
    assert "hunter2" not in str(problem)


def test_a_notifier_whose_connection_is_there_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PAGER", "http://pager.example.org")
    spec = loads(text_of(RECORDER, "{text: x, http_conn_id: pager}"))
    assert spec.notify == (NotifierSpec(RECORDER, {"text": "x", "http_conn_id": "pager"}),)
    assert find_notifier_problems(spec) == ()


def test_the_check_sends_a_test_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prod.yaml"
    file.write_text(text_of(RECORDER, "{text: '{{ kmigrate.title }}'}"))
    assert check.main([str(file)]) == 0
    assert check.main(["--test-message", str(file)]) == 0
    assert SENT == ["kmigrate: prod: test message"]
    assert "a test message was sent" in capsys.readouterr().out


def test_a_test_message_that_nobody_could_send_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prod.yaml"
    file.write_text(text_of(RECORDER, "{text: x, fails: true}"))
    assert check.main(["--test-message", str(file)]) == 1
    assert "F08" in capsys.readouterr().err


def test_a_notifier_without_a_class_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prod.yaml"
    file.write_text(text_of("no.such.Module", "{}"))
    assert check.main([str(file)]) == 1
    assert "F08" in capsys.readouterr().err
