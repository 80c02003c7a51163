"""Programs on this machine: real ones, with their exit codes, their output and their time; and the placeholders of commands."""

import os
import sys
import time

import pytest

from airflow_provider_kmigrate.clients.commands import CommandAnswer, LocalRunner, fill, run
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script, "sh")


def test_a_command_gets_its_input_and_answers_with_its_code_and_output() -> None:
    answer = LocalRunner()(sh("cat; echo no java >&2; exit 7"), "p\xe4ssword", 30.0)
    assert (answer.code, answer.out, answer.err_tail) == (7, "p\xe4ssword", "no java")


def test_a_command_that_hangs_times_out() -> None:
    with pytest.raises(TimedOut, match="sleep"):
        LocalRunner()(("sleep", "60"), "", 0.1)


def test_a_child_that_keeps_the_output_open_does_not_hold_the_command() -> None:
    began = time.monotonic()
    assert LocalRunner()(sh("sleep 20 &"), "", 30.0).code == 0
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("argv", [("/no/such/program",), ("/",), ("",), ("\0",)])
def test_a_program_that_cannot_run_fails(argv: tuple[str, ...]) -> None:
    with pytest.raises(KMigrateError, match="cannot run"):
        LocalRunner()(argv, "", 30.0)


SECRETS = ("AIRFLOW_CONN_PROD", "AWS_SECRET_ACCESS_KEY", "VAULT_TOKEN", "DATABASE_URL", "KAFKA_PASSWORD")


def test_commands_get_the_connections_environment_and_nothing_secret_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    text = LocalRunner({"SSH_KEY": "k"})(("env",), "", 30.0).out
    assert "SSH_KEY=k" in text
    assert "LC_ALL=C\n" in text
    assert "SSH_AUTH_SOCK=/run/agent\n" in text
    assert f"HOME={os.environ['HOME']}\n" in text
    assert "canary" not in text


def test_what_a_command_printed_is_not_in_repr() -> None:
    assert "secret" not in repr(CommandAnswer(0, "password=secret", "secret"))


def test_values_stay_one_word_and_are_never_shell() -> None:
    argv = fill((*sh('echo "<$1>"'), "{host}"), {"host": "$(touch /tmp/evil); a b"})
    assert argv[-1] == "$(touch /tmp/evil); a b"
    assert LocalRunner()(argv, "", 30.0).out == "<$(touch /tmp/evil); a b>\n"


def test_braces_of_other_programs_stay() -> None:
    assert fill(("${HOME}", "{{x}}", '{"a": 1}', "-D{id}"), {"id": "7"}) == ("${HOME}", "{{x}}", '{"a": 1}', "-D7")


def test_a_placeholder_without_a_value_is_refused() -> None:
    with pytest.raises(Refused, match=r"M02.*\{cluster_id\}.*'host'"):
        fill(("start", "{cluster_id}"), {"host": "h"})


def test_a_program_that_runs_to_its_end_says_why_it_failed() -> None:
    run([sys.executable, "-c", ""], 30.0, "Python")
    with pytest.raises(Failed, match="Python ended with 7: out"):
        run(sh("echo out; exit 7"), 30.0, "Python")
    with pytest.raises(TimedOut, match="Maven did not end within 0 s; check its mirrors"):
        run(("sleep", "60"), 0.1, "Maven", "check its mirrors")
