"""The request for an approval in Airflow's own page, in a real browser: each DAG that asks, its form, and the answers that a person gives."""

from __future__ import annotations

import email
import html
import json
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from email import policy
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import uvicorn
import yaml
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import DAG
from fastapi.testclient import TestClient

from airflow_provider_kmigrate.core.cluster_state.spec import StopPoint
from airflow_provider_kmigrate.core.migration.plan import FINALIZE, ROLL_BACK
from airflow_provider_kmigrate.dag_builders import folder
from tests.core.next_moves import WORDS
from tests.pages.browser import Browser, browser
from tests.provider.airflow_tasks import pause, token_of
from tests.provider.approver_users import Users
from tests.provider.dag_tasks import DAG_ID, tasks
from tests.provider.rollback_dag import DAG_ID as ROLLBACK_ID
from tests.provider.simulated import Rehearsal, document
from tests.steps.phases import all_kraft
from tests.steps.sim import SimCluster
from tests.waiting import wait_until

RunDag = Callable[..., Any]
GROUP = {"name": "billing", "switch": "restart {instance} {kind}", "instances": [{"name": "app-0"}]}
ASKS = {
    "approvers": {"users": ["ann", "bob"], "required": 2, "reason": True},
    "stop_after": [str(point) for point in StopPoint],
    "groups": [GROUP],
}
"""Keys of a cluster file whose DAGs ask wherever they can."""


@cache
def asking() -> tuple[HITLOperator, ...]:
    """Each task that asks, of every DAG that is built."""
    with tempfile.TemporaryDirectory() as files:
        (Path(files) / "sim.yaml").write_text(yaml.safe_dump(document(SimCluster()) | ASKS))
        dags = folder.dags_of(Path(files))
        return tuple(task for dag in dags.values() for task in dag.tasks if isinstance(task, HITLOperator))


def only(task: str) -> str:
    """The pattern of the tasks of a DAG that are marked as success, so that `task` asks, with real evidence."""
    return rf"(?!{task}$|finalize\.|before_approval\.|soak$|start_rollback$|rollback_started$).*"


class Site(NamedTuple):
    """Airflow's pages."""

    app: Any
    url: str


@pytest.fixture(scope="module")
def site(api: TestClient) -> Iterator[Site]:
    """Airflow's API server, on an address and a port of its own."""
    listener = socket.create_server(("127.0.0.77", 0))
    server = uvicorn.Server(uvicorn.Config(api.app, log_level="warning", lifespan="off"))
    thread = Thread(target=server.run, args=([listener],))
    thread.start()
    wait_until(lambda: server.started, "the API server starts")
    yield Site(api.app, f"http://127.0.0.77:{listener.getsockname()[1]}")
    server.should_exit = True
    thread.join(30)
    listener.close()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def sim(begun: Callable[..., Any], known: Callable[[DAG], None], api: TestClient) -> Rehearsal:
    """A cluster in dual-write whose file asks for approvals wherever it can."""
    rehearsal: Rehearsal = begun(all_kraft)[0]
    rehearsal.path.write_text(yaml.safe_dump(document(rehearsal.cluster) | ASKS))
    known(folder.dags_of(rehearsal.path.parent)[ROLLBACK_ID])
    pause(api, ROLLBACK_ID, paused=False)
    return rehearsal


class Visitors(Users):
    """Users who answer in the page, one after another; `pages`: what it showed each of them, `failed`: what they did not find there."""

    def __init__(self, site: Site, tab: Browser, api: TestClient, dag_id: str, answers: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(api, dag_id, answers)
        self._site, self._tab = site, tab
        self.pages: list[str] = []
        self.failed = ""
        self.before_click: Callable[[], None] = lambda: None

    def _patch(self, path: str, user: str, option: str, reason: str) -> int:
        try:
            return self._visit(path, user, option, reason)
        except AssertionError as error:
            self.failed, self._left = f"{user}, {option}: {error}", []
            return super()._patch(path, user, option, reason)  # the run must end

    def _visit(self, path: str, user: str, option: str, reason: str) -> int:
        _, dag_id, _, run_id, _, task_id, *_ = path.removeprefix("/api/v2/").split("/")
        tab, button = self._tab, f"document.querySelector('[data-testid=\"hitl-option-{option}\"]')"
        tab.call("Network.setCookie", name="_token", value=token_of(self._site.app, user), url=self._site.url)
        tab.navigate(f"{self._site.url}/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/required_actions")
        tab.wait_for(f"{button} !== null")
        self.pages.append(tab.text())
        assert tab.value(f"{button}.disabled"), "no answer can be sent without a reason"
        tab.value("document.querySelector('input[name=element_reason]').focus()")
        tab.type(reason)
        tab.wait_for(f"!{button}.disabled")
        self.before_click()
        tab.statuses.clear()
        tab.value(f"{button}.click()")
        return tab.status_of("PATCH")


class Mails(Message):
    """What a real mail server was given, each as its HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[str] = []

    def handle_message(self, message: Any) -> None:
        parsed = email.message_from_bytes(message.as_bytes(), policy=policy.default)
        self.received.append(parsed.get_body(("html",)).get_content())  # type: ignore[union-attr]


@pytest.fixture
def mails() -> Iterator[tuple[Mails, int]]:
    """A mail server, and its port."""
    with socket.create_server(("127.0.0.79", 0)) as free:
        port = free.getsockname()[1]
    received = Mails()
    server = Controller(received, hostname="127.0.0.79", port=port)
    server.start()
    yield received, port
    server.stop()


class Readers(Visitors):
    """Approvers who have nothing but the mail, their name and their password. `read`: the text of the mail."""

    def __init__(self, mails: Mails, password: str, *about: Any) -> None:
        super().__init__(*about)
        self._mails, self._password = mails, password
        self.read = ""

    def _visit(self, path: str, user: str, option: str, reason: str) -> int:
        tab, button = self._tab, f"document.querySelector('[data-testid=\"hitl-option-{option}\"]')"
        wait_until(lambda: self._mails.received, "the mail", 60.0)
        self.read = html.unescape(re.sub(r"<[^>]*>", " ", self._mails.received[-1]))
        tab.call("Network.clearBrowserCookies")
        tab.navigate(html.unescape(re.findall(r'href="(http[^"]*required_actions[^"]*)"', self._mails.received[-1])[0]))
        for name, typed in (("username", user), ("password", self._password)):
            tab.wait_for(f"document.querySelector('input[name={name}]') !== null", within=120.0)
            tab.value(f"document.querySelector('input[name={name}]').focus()")
            tab.type(typed)
        tab.value("document.querySelector('button[type=submit]').click()")
        tab.wait_for(f"{button} !== null", within=120.0)  # the first page of a browser without a cache, on a busy machine
        tab.value("document.querySelector('input[name=element_reason]').focus()")
        tab.type(reason)
        tab.wait_for(f"!{button}.disabled")
        tab.statuses.clear()
        tab.value(f"{button}.click()")
        return tab.status_of("PATCH")


@pytest.mark.long
@pytest.mark.slow(seconds=60)
def test_the_mail_alone_leads_to_an_approval_that_counts(
    site: Site, tab: Browser, api: TestClient, sim: Rehearsal, run_dag: RunDag, *, mails: tuple[Mails, int],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """By the notifier of the operator's guide, to a real mail server; the approver logs in and answers in a real browser."""
    received, port = mails
    guide = (Path(__file__).parents[2] / "docs" / "operators-guide.md").read_text(encoding="utf-8")
    [example] = [block for block in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "SmtpNotifier" in block]
    extra = json.dumps({"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.org"})
    smtp = {"conn_type": "smtp", "host": "127.0.0.79", "port": port, "extra": extra}
    passwords = tmp_path / "passwords.json"
    passwords.write_text(json.dumps({"ann": "a word of ann's"}))
    for name, value in {
        "AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(smtp),
        "AIRFLOW__API__BASE_URL": site.url,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }.items():
        monkeypatch.setenv(name, value)
    approvers = {"approvers": {"users": ["ann"], "reason": True}, "notify": yaml.safe_load(example)["notify"]}
    sim.path.write_text(yaml.safe_dump(document(sim.cluster) | approvers))
    people = Readers(received, "a word of ann's", site, tab, api, DAG_ID, [("ann", FINALIZE, "all is well")])
    with people.at_work() as visitors:
        run = run_dag(folder.dags_of(sim.path.parent)[DAG_ID], mark_success_pattern=only("approve"))
    assert (visitors.failed, visitors.statuses, str(run.state)) == ("", [200], "success")
    assert sim.cluster.finalized
    [approval] = notes(tmp_path, "approval")
    assert [(answer["user"], answer["reason"]) for answer in approval["answers"]] == [("ann", "all is well")]
    figures = ["Records lost", "Records twice", "Longest stall of a producer", "A rollback takes"]
    order = ("Open the request", *figures, "runs in dual-write", "The answers:", "Who may answer: ann.", "What was observed:")
    places = [people.read.index(text) for text in order]
    assert places == sorted(places), "the link, the four figures, the answers, then what is long"
    assert len(people.read[: places[-1]].split()) <= 2 * WORDS, "two minutes, in a second language"


def test_each_dag_that_asks_has_a_form_with_the_reason_alone_which_must_be_given() -> None:
    """The DAG's params must not replace the form's."""
    assert {task.dag_id for task in asking()} == {
        f"kmigrate_{kind}__sim" for kind in ("zk_to_kraft", "rollback", "clean_up", "offsets_topic", "consumers_rollback")
    }
    forms = [task.serialized_params for task in asking()]
    assert [list(form) for form in forms] == [["reason"]] * len(forms)
    assert [(form["reason"]["value"], form["reason"]["schema"]["type"]) for form in forms] == [(None, "string")] * len(forms)


@pytest.mark.slow
@pytest.mark.parametrize(("dag_id", "task"), [(task.dag_id, task.task_id) for task in asking()])
def test_each_request_has_a_field_for_the_reason_and_its_answer_is_in_the_journal(
    site: Site, tab: Browser, api: TestClient, sim: Rehearsal, run_dag: RunDag, *, dag_id: str, task: str, tmp_path: Path
) -> None:
    """F1: the DAG's params replaced the form's."""
    dag = folder.dags_of(sim.path.parent)[dag_id]
    no = dag.get_task(task).no  # type: ignore[attr-defined]
    with Visitors(site, tab, api, dag_id, [("ann", no, "it is Friday")]).at_work() as visitors:
        run = run_dag(dag, mark_success_pattern=only(task))
    assert (visitors.failed, visitors.statuses, tasks(run)[task]) == ("", [200], "failed")
    [page] = visitors.pages
    assert all(text in page for text in ("Reason\n*", "Who may answer: ann, bob", "An answer needs a reason"))
    assert "it is Friday" in str(notes(tmp_path, "answered")[-1])


@pytest.mark.slow
def test_two_approvers_finalize_in_the_page_and_a_blank_reason_does_not_count(
    site: Site, tab: Browser, api: TestClient, sim: Rehearsal, run_dag: RunDag, *, tmp_path: Path
) -> None:
    given = [("ann", FINALIZE, "   "), ("ann", FINALIZE, "all is well"), ("ann", FINALIZE, "again"), ("bob", FINALIZE, "I agree")]
    with Visitors(site, tab, api, DAG_ID, given).at_work() as visitors:
        run = run_dag(folder.dags_of(sim.path.parent)[DAG_ID], mark_success_pattern=only("approve"))
    assert (visitors.failed, visitors.statuses, str(run.state)) == ("", [200] * 4, "success")
    assert sim.cluster.finalized
    refused = [line["text"] for line in notes(tmp_path, "answer refused")]
    assert ["(ann) gave no reason" in text for text in refused] == [True, False]
    assert "(ann) has approved already; another approver must" in refused[1]
    [approval] = notes(tmp_path, "approval")
    assert [(answer["user"], answer["reason"]) for answer in approval["answers"]] == [("ann", "all is well"), ("bob", "I agree")]


@pytest.mark.slow
def test_roll_back_in_the_page_is_no_success_while_the_dag_of_the_rollback_is_paused(
    site: Site, tab: Browser, api: TestClient, sim: Rehearsal, run_dag: RunDag
) -> None:
    """F17: it was paused after the request was made."""
    with Visitors(site, tab, api, DAG_ID, [("bob", ROLL_BACK, "it is slow")]).at_work() as visitors:
        visitors.before_click = lambda: pause(api, ROLLBACK_ID, paused=True)
        run = run_dag(folder.dags_of(sim.path.parent)[DAG_ID], mark_success_pattern=only("approve"))
    assert (visitors.failed, visitors.statuses) == ("", [200])
    assert (str(run.state), tasks(run)["approve"], tasks(run)["start_rollback"]) == ("failed", "success", "failed")
    tab.navigate(f"{site.url}/dags/{DAG_ID}/runs/{run.run_id}/tasks/start_rollback")
    tab.wait_for("document.body.innerText.includes('start_rollback') && document.body.innerText.includes('Failed')")


def notes(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    """What the journals of the cluster say of approvals."""
    files = sorted((tmp_path / "kmigrate" / "journal" / "sim").glob("*.jsonl"))
    return [line for file in files for line in map(json.loads, file.read_text().splitlines()) if line["kind"] == kind]
