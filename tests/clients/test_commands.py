"""Programs on this machine: real ones, with their exit codes, their output and their time; and the placeholders of commands."""

import os
import sys
import time

import pytest

from airflow_provider_kmigrate.clients.commands import command_environment, fill_placeholders, run, run_command
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script, "sh")


def ran(argv: tuple[str, ...], timeout: float = 30.0, env: dict[str, str] | None = None) -> tuple[int, str]:
    return run_command(argv, command_environment(env), timeout)


def test_a_command_has_no_input_and_answers_with_its_code_and_the_end_of_its_errors() -> None:
    assert ran(sh("cat; echo password; echo no java >&2; exit 7")) == (7, "no java")
    code, said = ran(sh("seq 1 100000 >&2"))
    assert (code, len(said) <= 2_000, said.splitlines()[-1]) == (0, True, "100000")


def test_a_command_that_hangs_times_out() -> None:
    with pytest.raises(TimedOut, match="sleep"):
        ran(("sleep", "60"), 0.1)


def test_a_child_that_keeps_the_output_open_does_not_hold_the_command() -> None:
    began = time.monotonic()
    assert ran(sh("sleep 20 &")) == (0, "nothing on stderr")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("argv", [("/no/such/program",), ("/",), ("",), ("\0",)])
def test_a_program_that_cannot_run_fails(argv: tuple[str, ...]) -> None:
    with pytest.raises(KMigrateError, match="cannot run"):
        ran(argv)


SECRETS = ("AIRFLOW_CONN_PROD", "AWS_SECRET_ACCESS_KEY", "VAULT_TOKEN", "DATABASE_URL", "KAFKA_PASSWORD")


def test_commands_get_the_connections_environment_and_nothing_secret_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    text = f"{ran(sh('env >&2'), env={'SSH_KEY': 'k'})[1]}\n"
    assert "SSH_KEY=k" in text
    assert "LC_ALL=C\n" in text
    assert "SSH_AUTH_SOCK=/run/agent\n" in text
    assert f"HOME={os.environ['HOME']}\n" in text
    assert "canary" not in text


def test_values_stay_one_word_and_are_never_shell() -> None:
    argv = fill_placeholders((*sh('echo "<$1>" >&2'), "{host}"), {"host": "$(touch /tmp/evil); a b"})
    assert argv[-1] == "$(touch /tmp/evil); a b"
    assert ran(argv)[1] == "<$(touch /tmp/evil); a b>"


def test_braces_of_other_programs_stay() -> None:
    assert fill_placeholders(("${HOME}", "{{x}}", '{"a": 1}', "-D{id}"), {"id": "7"}) == ("${HOME}", "{{x}}", '{"a": 1}', "-D7")


def test_a_program_that_runs_to_its_end_says_why_it_failed() -> None:
    run([sys.executable, "-c", ""], 30.0, "Python")
    with pytest.raises(Failed, match="Python ended with 7: out"):
        run(sh("echo out; exit 7"), 30.0, "Python")
    with pytest.raises(TimedOut, match="Maven did not end within 0 s; check its mirrors"):
        run(("sleep", "60"), 0.1, "Maven", "check its mirrors")
