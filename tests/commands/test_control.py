"""The commands that stop and free: `pause`, `resume`, `flag return`, `unlock`; and the completion of them all."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from airflow_provider_kmigrate import completion, masking
from airflow_provider_kmigrate.cli import COMMANDS, main
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.commands import reading
from airflow_provider_kmigrate.pages import rest
from tests.clients.memory_zookeeper import Ensemble, MemoryZooKeeper

CLUSTER_ID = "q1Sh-9_ISia_zwGINzRvyQ"
URL = "https://airflow.example"


class Airflow:
    """Its API, as far as the commands use it. `status`: what it answers to everything, if not 0; `loses`: it takes a Variable and forgets it."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.cleared: list[dict[str, Any]] = []
        self.runs = ["manual__2", "manual__1"]
        self.status, self.loses = 0, False

    def __call__(self, request: httpx.Request) -> httpx.Response:  # noqa: PLR0911  # one answer for each path
        assert request.headers["Authorization"] == "Bearer t0ken"
        if self.status:
            return httpx.Response(self.status)
        path, method = request.url.path.removeprefix("/api/v2"), request.method
        body = json.loads(request.content or b"null")
        if path == "/variables" and method == "POST":
            self.variables |= {} if self.loses else {body["key"]: body["value"]}
            return httpx.Response(201, json=body)
        if path.startswith("/variables/"):
            name = path.rpartition("/")[2]
            if name not in self.variables:
                return httpx.Response(404, json={"detail": "no"})
            if method == "DELETE":
                del self.variables[name]
                return httpx.Response(204)
            return httpx.Response(200, json={"key": name, "value": self.variables[name]})
        if path == "/dags/kmigrate_zk_to_kraft__prod/dagRuns":
            return httpx.Response(200, json={"dag_runs": [{"dag_run_id": run} for run in self.runs[:1]]})
        if path == "/dags/kmigrate_zk_to_kraft__prod/clearTaskInstances":
            self.cleared.append(body)
            known = [task for task in body["task_ids"] if task == "controllers.provision_3001"]
            return httpx.Response(200, json={"task_instances": known, "total_entries": len(known)})
        return httpx.Response(404)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    found, make = Airflow(), rest.open_client
    monkeypatch.setenv(rest.TOKEN, "t0ken")
    monkeypatch.setattr(rest, "open_client", lambda url: make(url, httpx.MockTransport(found)))
    return found


def test_pause_sets_the_kill_switch_and_resume_takes_it_away(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "prod", "--why", "disk full", "--airflow-url", URL]) == 0
    assert airflow.variables["kmigrate_stop__prod"].endswith(": disk full")
    assert "prod is paused" in capsys.readouterr().out
    assert main(["pause", "prod", "--why", "another reason", "--airflow-url", URL]) == 0
    assert "prod was paused before" in capsys.readouterr().out
    assert airflow.variables["kmigrate_stop__prod"].endswith(": disk full"), "who paused first is not overwritten"
    assert main(["resume", "prod", "--airflow-url", URL]) == 0
    assert airflow.variables == {}
    assert main(["resume", "prod", "--airflow-url", URL]) == 0
    assert "prod was not paused" in capsys.readouterr().out


def test_a_user_without_a_name_may_pause_too(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod runs as any number, which no /etc/passwd has."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(f"uid not found: {uid}")))
    assert main(["pause", "prod", "--why", "x", "--airflow-url", URL]) == 0
    assert airflow.variables["kmigrate_stop__prod"] == f"user {os.getuid()}: x"


def test_resume_names_the_switch_of_all_clusters(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    airflow.variables["kmigrate_stop"] = "Ann: all"
    assert main(["resume", "prod", "--airflow-url", URL]) == 1
    assert "'Ann: all'" in capsys.readouterr().err
    assert airflow.variables == {"kmigrate_stop": "Ann: all"}


@pytest.mark.parametrize("command", [["pause", "prod", "--why", "x"], ["resume", "prod"], ["flag", "return", "prod", "3001"]])
@pytest.mark.parametrize("status", [401, 403, 500])
def test_an_airflow_that_refuses_is_no_success(
    airflow: Airflow, capsys: pytest.CaptureFixture[str], command: list[str], status: int
) -> None:
    airflow.status = status
    assert main([*command, "--airflow-url", URL]) == 2
    assert str(status) in capsys.readouterr().err


def test_a_switch_that_airflow_took_and_does_not_show_is_no_pause(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    airflow.loses = True
    assert main(["pause", "prod", "--why", "x", "--airflow-url", URL]) == 2
    assert "is not paused" in capsys.readouterr().err


def test_a_variable_without_a_text_is_not_read(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    airflow.variables["kmigrate_stop__prod"] = None  # type: ignore[assignment]
    assert main(["resume", "prod", "--airflow-url", URL]) == 2
    assert "not what its API describes" in capsys.readouterr().err
    assert "kmigrate_stop__prod" in airflow.variables


@pytest.mark.parametrize("body", ["", "null"])
@pytest.mark.parametrize("command", [["pause", "prod", "--why", "x"], ["resume", "prod"], ["flag", "return", "prod", "3001"]])
def test_an_answer_of_nothing_does_not_say_that_there_is_no_switch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], body: str
) -> None:
    make = rest.open_client
    monkeypatch.setenv(rest.TOKEN, "t0ken")
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=body))
    monkeypatch.setattr(rest, "open_client", lambda url: make(url, transport))
    assert main([*command, "--airflow-url", URL]) == 2
    assert "is empty" in capsys.readouterr().err


def test_a_switch_whose_text_has_a_secret_is_shown_without_it(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(masking, "_hidden", {"canary-token": None})
    for name in ("kmigrate_stop__prod", "kmigrate_stop"):
        airflow.variables[name] = "by canary-token"
    assert main(["pause", "prod", "--why", "x", "--airflow-url", URL]) == 0
    assert main(["resume", "prod", "--airflow-url", URL]) == 1
    shown = "".join(capsys.readouterr())
    assert shown.count("'by ***'") == 3
    assert "canary" not in shown


@pytest.mark.parametrize("body", ['{"detail": "Not Found"}', " <html>404</html>"])
@pytest.mark.parametrize("command", [["pause", "prod", "--why", "x"], ["resume", "prod"], ["flag", "return", "prod", "3001"]])
def test_an_address_that_is_not_airflows_does_not_say_that_there_is_no_switch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], body: str
) -> None:
    """Airflow below another path, or a web server: both answer 404 to everything."""
    make = rest.open_client
    monkeypatch.setenv(rest.TOKEN, "t0ken")
    transport = httpx.MockTransport(lambda _: httpx.Response(404, text=body))
    monkeypatch.setattr(rest, "open_client", lambda url: make(url, transport))
    assert main([*command, "--airflow-url", URL]) == 2
    assert "the address lacks a part" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [[], [7], {"dag_runs": 7}, {"dag_runs": [{}]}, {}], ids=repr)
def test_runs_of_another_form_end_flag_return_with_a_sentence(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any
) -> None:
    make = httpx.Client
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    monkeypatch.setattr(rest, "open_client", lambda _: make(base_url=URL, transport=transport))
    assert main(["flag", "return", "prod", "3001", "--airflow-url", URL]) in {1, 2}
    assert capsys.readouterr().err.startswith("Airflow")


@pytest.mark.parametrize("name", ["../prod", "a/b", "", "prod?x=1", "x" * 300])
def test_what_is_no_name_of_a_cluster_reaches_no_airflow(airflow: Airflow, name: str) -> None:
    airflow.status = 599
    with pytest.raises(SystemExit, match="2"):
        main(["pause", name, "--why", "x", "--airflow-url", URL])


def test_the_token_goes_to_no_other_machine_unencrypted(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "prod", "--why", "x", "--airflow-url", "http://airflow.example"]) == 2
    assert "t0ken" not in capsys.readouterr().err
    assert airflow.variables == {}


def test_flag_return_clears_the_task_of_the_newest_run_and_none_behind_it(airflow: Airflow) -> None:
    assert main(["flag", "return", "prod", "3001", "--airflow-url", URL]) == 0
    (body,) = airflow.cleared
    assert (body["dag_run_id"], body["task_ids"]) == ("manual__2", ["controllers.provision_3001"])
    assert (body["dry_run"], body["include_downstream"], body["only_failed"]) == (False, False, False)


@pytest.mark.parametrize(("words", "runs"), [(["prod", "9"], ["manual__2"]), (["prod", "3001"], []), (["other", "3001"], ["a"])])
def test_flag_return_without_a_run_or_a_task_is_no_success(airflow: Airflow, words: list[str], runs: list[str]) -> None:
    airflow.runs = runs
    assert main(["flag", "return", *words, "--airflow-url", URL]) == 1


def test_flag_return_that_cannot_ask_says_nothing_of_runs(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["flag", "return", "prod", "3001", "--airflow-url", "http://airflow.example"]) == 2
    monkeypatch.delenv(rest.TOKEN)
    assert main(["flag", "return", "prod", "3001", "--airflow-url", URL]) == 2
    assert airflow.cleared == []


@pytest.fixture
def ensemble(monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    made = Ensemble(CLUSTER_ID)

    @contextmanager
    def open_context(*_: object) -> Iterator[SimpleNamespace]:
        spec = SimpleNamespace(cluster_id=CLUSTER_ID, name="prod")
        yield SimpleNamespace(tools=SimpleNamespace(zk=MemoryZooKeeper(made)), spec=spec)

    monkeypatch.setattr(reading, "open_context", open_context)
    return made


def test_unlock_frees_the_cluster_from_the_run_that_is_named_and_from_no_other(
    ensemble: Ensemble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["unlock", "prod.yaml"]) == 0
    assert set(ensemble.znodes) == {""}, "a look writes nothing"
    with Fence(MemoryZooKeeper(ensemble), CLUSTER_ID, "dag/run 1"):  # type: ignore[arg-type]
        assert main(["unlock", "prod.yaml"]) == 1
        assert "owned by dag/run 1" in capsys.readouterr().out
        assert main(["unlock", "prod.yaml", "--run", "dag/run 2"]) == 1
        assert any(path.endswith("/owner") for path in ensemble.znodes)
        assert main(["unlock", "prod.yaml", "--run", "dag/run 1"]) == 0
    assert not any(path.endswith("/owner") for path in ensemble.znodes)
    assert main(["unlock", "prod.yaml"]) == 0


def test_a_run_whose_name_is_a_command_is_one_word_of_the_command_to_type(
    ensemble: Ensemble, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "x'; touch forged; echo '\x1b[2J"
    with Fence(MemoryZooKeeper(ensemble), CLUSTER_ID, run):  # type: ignore[arg-type]
        assert main(["unlock", "a b.yaml"]) == 1
    shown = capsys.readouterr().out
    assert shown[:-1].isprintable()
    assert shlex.split(shown.partition("then: ")[2]) == ["kmigrate", "unlock", "a b.yaml", "--run", run.replace("\x1b", r"\x1b")]


def test_the_completion_completes_commands_their_options_and_their_subcommands(tmp_path: Path) -> None:
    script = tmp_path / "kmigrate.bash"
    script.write_text(completion.render_script())

    def complete(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in ("kmigrate", *words))
        text = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _kmigrate; echo ${{COMPREPLY[*]}}"
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60, check=True)
        return set(done.stdout.split())

    assert complete("") == set(COMMANDS)
    assert complete("pa") == {"pause"}
    assert complete("plan", "--c") == {"--compare", "--connections"}
    assert {"install", "check"} <= complete("node", "")
    assert complete("no-command", "") == set()
