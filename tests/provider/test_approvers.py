"""Who may approve, through Airflow's own API: the request, the refusal of others' answers, two approvers, reasons, and what is bound."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseNotifier, Context
from airflow.sdk.api.datamodels._generated import DagRunType
from fastapi.testclient import TestClient

from airflow_provider_kmigrate.approvals import read_journals, verify
from airflow_provider_kmigrate.clients.journal_heads import read_heads
from airflow_provider_kmigrate.clients.records import Records
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NotifierSpec
from airflow_provider_kmigrate.core.migration.approval import Approval, ApproverAnswer, Shown, hash_text
from airflow_provider_kmigrate.core.migration.plan import FINALIZE, ROLL_BACK, STAY
from airflow_provider_kmigrate.core.shared.text import defuse_markup
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.notifications import messages
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier
from airflow_provider_kmigrate.operators import approval as operators
from airflow_provider_kmigrate.operators.approval import ApproveRollbackOperator
from airflow_provider_kmigrate.utils.approval import demand_answer, find_requester
from tests.clients.memory_zookeeper import MemoryZooKeeper
from tests.kit.hostile import CONTROLS, MARKUP
from tests.provider.airflow_tasks import clear, pause
from tests.provider.approver_users import ONE, TWO, Users, demanded, file_of, gate
from tests.provider.dag_tasks import tasks
from tests.provider.rollback_dag import DAG_ID as ROLLBACK_ID
from tests.provider.simulated import Rehearsal
from tests.steps.phases import all_kraft
from tests.steps.sim_nodes import CLUSTER_ID

RunDag = Callable[..., Any]


def journal(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [
        line
        for path in (tmp_path / "kmigrate" / "journal" / "sim").glob("approvers*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


@pytest.fixture
def sim(begun: Callable[..., Any]) -> Rehearsal:
    """A cluster in dual-write, every broker in KRaft mode."""
    return begun(all_kraft)[0]


@pytest.mark.slow(seconds=60)
def test_a_user_who_is_not_an_approver_cannot_finalize(api: TestClient, sim: Rehearsal, run_dag: RunDag, tmp_path: Path) -> None:
    dag = gate(ONE, sim)
    with Users(api, dag.dag_id, [("eve", FINALIZE, ""), ("ann", FINALIZE, "the soak is over")]).at_work() as users:
        run = run_dag(dag)
    assert users.statuses == [403, 200], "Airflow itself refuses the answer of a user whom the file does not name"
    assert tasks(run)["act"] == "success"
    [line] = journal(tmp_path, "approval")
    assert (line["answers"][0]["user"], line["answers"][0]["reason"]) == ("ann", "the soak is over")
    assert line["shown"]["run"] == f"{dag.dag_id}/{run.run_id}"
    assert CLUSTER_ID in line["shown"]["cluster"]


@pytest.mark.slow
def test_where_airflow_lets_every_admin_answer_his_answer_still_does_not_count(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    dag = gate(ONE, sim)
    with Users(api, dag.dag_id, [("eve", FINALIZE, ""), ("eve", STAY, ""), ("ann", STAY, "")]).at_work() as users:
        run = run_dag(dag)
    assert users.statuses == [200, 200, 200]
    assert tasks(run) == {"soak": "success", "approve": "failed", "act": "upstream_failed"}
    refused = journal(tmp_path, "answer refused")
    assert ["(eve)" in line["text"] and "H10" in line["text"] for line in refused] == [True, True]
    assert "by ann (ann)" in journal(tmp_path, "answered")[0]["text"], "it was asked until an approver answered"


@pytest.mark.slow
def test_two_different_approvers_with_a_reason_each(api: TestClient, sim: Rehearsal, run_dag: RunDag, tmp_path: Path) -> None:
    dag = gate(TWO, sim)
    given = [("ann", FINALIZE, ""), ("ann", FINALIZE, "all is well"), ("ann", FINALIZE, "again"), ("bob", FINALIZE, "I agree")]
    with Users(api, dag.dag_id, given).at_work() as users:
        run = run_dag(dag)
    assert users.statuses == [200] * 4
    assert tasks(run)["act"] == "success"
    assert ["(ann) gave no reason" in line["text"] for line in journal(tmp_path, "answer refused")] == [True, False]
    [line] = journal(tmp_path, "approval")
    assert [(each["user"], each["reason"]) for each in line["answers"]] == [("ann", "all is well"), ("bob", "I agree")]
    zk = MemoryZooKeeper(sim.ensemble)
    records = Records(zk, CLUSTER_ID)
    found = verify(
        list(records.approvals()), list(read_heads(zk, CLUSTER_ID)), read_journals(tmp_path / "kmigrate" / "journal" / "sim")
    )
    assert found.is_sound, found.lines
    assert [kept.approval and len(kept.approval.answers) for kept in records.approvals()] == [2]


@pytest.mark.slow
def test_an_answer_with_fields_that_the_form_does_not_have_is_judged_and_fails_nothing(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, tmp_path: Path
) -> None:
    dag = gate(TWO, sim)
    given = [("ann", FINALIZE, ""), ("ann", FINALIZE, "all is well"), ("bob", FINALIZE, "I agree")]
    with Users(api, dag.dag_id, given).at_work() as users:
        users.beside = {"ticket": ["OPS-1"]}
        run = run_dag(dag)
    assert (users.statuses, tasks(run)["act"]) == ([200] * 3, "success")
    assert "(ann) gave no reason" in journal(tmp_path, "answer refused")[0]["text"]


@pytest.mark.slow
def test_a_message_says_why_an_answer_did_not_count_and_who_has_approved(
    api: TestClient, sim: Rehearsal, run_dag: RunDag
) -> None:
    """The page cannot: Airflow keeps the first text of a request."""
    SENT.clear()
    notifier = ClusterNotifier((MAIL,), "", "asks: {{ task.subject }}", "{{ task.body }}")
    dag = gate(TWO, sim, notifiers=[notifier])
    with Users(api, dag.dag_id, [("ann", FINALIZE, " "), ("ann", FINALIZE, "all is well"), ("bob", STAY, "no")]).at_work():
        run_dag(dag)
    first, refused, second = (body for _, _, body in SENT)
    assert "does not count" not in first.split("Who may answer")[0]
    assert refused.startswith("The answer does not count; asking again. ")
    assert "ann (ann) gave no reason" in refused
    assert second.startswith("ann has approved; another approver must.")


@pytest.mark.slow
def test_a_cleared_request_is_asked_again_only_with_the_text_that_its_page_shows(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, continue_run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow keeps a request's first text, whatever is cleared: an approver would approve what was observed weeks ago."""
    dag = gate(ONE, sim)
    observed = iter(["healthy", "healthy", "healthy for longer"])
    dag.get_task("soak").python_callable = lambda: next(observed)  # type: ignore[attr-defined]
    with Users(api, dag.dag_id, [("ann", STAY, "")]).at_work():
        run = run_dag(dag)
    clear(api, run, "soak")
    with Users(api, dag.dag_id, [("ann", STAY, "not yet")]).at_work() as users:
        again = continue_run(dag, run)
    assert (users.statuses, tasks(again)["approve"]) == ([200], "failed"), "the same evidence: asked again"
    clear(api, run, "soak")
    with Users(api, dag.dag_id, [("ann", FINALIZE, "")]).at_work() as users:
        again = continue_run(dag, run)
    assert (users.statuses, tasks(again)["approve"]) == ([], "failed"), "other evidence: not asked"
    assert "Start a new run of this DAG" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "user", "known"), [
    (DagRunType.MANUAL, "ann", "ann"), (DagRunType.MANUAL, None, None), (DagRunType.SCHEDULED, None, ""), (DagRunType.OPERATOR_TRIGGERED, None, None),
    (DagRunType.BACKFILL, "bob", "bob"), (DagRunType.ASSET_TRIGGERED, None, None),
])  # fmt: skip
def test_a_runs_requester_is_whom_airflow_names_empty_for_a_schedule_and_else_unknown(
    kind: DagRunType, user: str | None, known: str | None
) -> None:
    run = SimpleNamespace(run_type=kind, triggering_user_name=user)
    assert find_requester({"dag_run": run}) == known  # type: ignore[typeddict-item]


def test_the_second_approver_may_still_say_no(api: TestClient, sim: Rehearsal, run_dag: RunDag) -> None:
    dag = gate(TWO, sim)
    with Users(api, dag.dag_id, [("ann", FINALIZE, "all is well"), ("bob", STAY, "")]).at_work():
        run = run_dag(dag)
    assert tasks(run) == {"soak": "success", "approve": "failed", "act": "upstream_failed"}


@pytest.mark.slow
@pytest.mark.parametrize("user", ["bob", "ann"])
def test_the_second_answer_may_be_to_roll_back_and_counts_alone(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, known: Callable[[DAG], None], user: str
) -> None:
    known(folder.dags_of(sim.path.parent)[ROLLBACK_ID])
    dag = gate(TWO, sim, rollback_task="start_rollback")
    with dag:
        start_rollback = PythonOperator(task_id="start_rollback", python_callable=demanded_back, trigger_rule="none_failed")
        dag.get_task("approve").set_downstream(start_rollback)
    given = [("ann", FINALIZE, "all is well"), (user, ROLL_BACK, "it is slow")]
    with Users(api, dag.dag_id, given).at_work():
        run = run_dag(dag)
    assert tasks(run) == {"soak": "success", "approve": "success", "act": "skipped", "start_rollback": "success"}


@pytest.mark.parametrize("is_known", [True, False])
def test_no_request_that_offers_a_rollback_is_made_while_its_dag_is_paused_or_unknown(
    api: TestClient,
    sim: Rehearsal,
    run_dag: RunDag,
    known: Callable[[DAG], None],
    *,
    capsys: pytest.CaptureFixture[str],
    is_known: bool,
) -> None:
    dag = gate(ONE, sim, rollback_task="start_rollback")
    if is_known:
        known(folder.dags_of(sim.path.parent)[ROLLBACK_ID])
        pause(api, ROLLBACK_ID, paused=True)
    else:
        dag.get_task("approve").cluster = "unknown"  # type: ignore[attr-defined]
    with dag:
        dag.get_task("approve").set_downstream(PythonOperator(task_id="start_rollback", python_callable=demanded_back))
    with Users(api, dag.dag_id, [("ann", FINALIZE, "")]).at_work() as users:
        run = run_dag(dag)
    assert (users.statuses, tasks(run)["approve"]) == ([], "failed")
    log = capsys.readouterr().out
    assert ("H11" in log, f"The DAG {ROLLBACK_ID} is paused" in log) == (True, is_known)


def demanded_back(**context: Any) -> None:
    demand_answer(file_of(context), context, "approve", ROLL_BACK)  # type: ignore[arg-type]


def test_an_answer_to_what_is_not_so_any_more_is_refused(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration that was shown was rolled back while the request waited, and another one was begun."""
    from airflow_provider_kmigrate.utils import approval  # noqa: PLC0415

    seen = iter(["first migration", "second migration"])
    monkeypatch.setattr(approval, "fingerprint", lambda _view, _cluster: next(seen))
    dag = gate(ONE, sim)
    with Users(api, dag.dag_id, [("ann", FINALIZE, "")]).at_work():
        run = run_dag(dag)
    assert tasks(run)["approve"] == "failed"


@pytest.mark.slow
def test_an_approval_is_not_used_for_other_evidence(api: TestClient, sim: Rehearsal, run_dag: RunDag) -> None:
    """The soak was cleared after the answer, alone, and said something else."""
    dag = gate(ONE, sim)
    with dag:
        later = PythonOperator(task_id="later", python_callable=changed)
        dag.get_task("act").set_downstream(later)
    with Users(api, dag.dag_id, [("ann", FINALIZE, "")]).at_work():
        run = run_dag(dag)
    assert (tasks(run)["act"], tasks(run)["later"]) == ("success", "failed")


def changed(**context: Any) -> None:
    ti = context["ti"]
    pull = ti.xcom_pull

    class Cleared:
        def xcom_pull(self, task_ids: str, **key: str) -> Any:
            return "healthy for longer" if task_ids == "soak" and not key else pull(task_ids=task_ids, **key)

    demand_answer(file_of(context), {**context, "ti": Cleared()}, "approve", FINALIZE)  # type: ignore[arg-type,typeddict-item]


def test_an_approval_of_something_else_is_none(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, known: Callable[[DAG], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """*Roll back* is no approval to finalize, whatever a person clears afterwards."""
    known(folder.dags_of(sim.path.parent)[ROLLBACK_ID])
    pause(api, ROLLBACK_ID, paused=False)
    dag = gate(ONE, sim, rollback_task="start_rollback")
    with dag:
        start_rollback = PythonOperator(task_id="start_rollback", python_callable=demanded_back, trigger_rule="none_failed")
        later = PythonOperator(task_id="later", python_callable=demanded, trigger_rule="none_failed")
        dag.get_task("approve").set_downstream(start_rollback)
        start_rollback.set_downstream(later)
    with Users(api, dag.dag_id, [("ann", ROLL_BACK, "")]).at_work():
        run = run_dag(dag)
    assert (tasks(run)["start_rollback"], tasks(run)["later"]) == ("success", "failed")
    assert "H06" in capsys.readouterr().out


def test_no_request_is_made_while_it_is_unknown_which_migration_is_under_way(
    sim: Rehearsal, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approval that is bound to no migration would hold for the next one, too."""
    observe = sim.cluster.observe
    monkeypatch.setattr(sim.cluster, "observe", lambda *given: dataclasses.replace(observe(*given), zk=None))
    dag = gate(ONE, sim)
    run = run_dag(dag)
    assert tasks(run) == {"soak": "success", "approve": "failed", "act": "upstream_failed"}


@pytest.mark.parametrize(("user", "hours", "counts"), [("ann", 0.9, True), ("ann", 1.1, False), ("eve", 0.0, False)])
def test_an_approval_that_came_with_the_lock_counts_only_while_its_approver_does(
    user: str, hours: float, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollback's DAG was paused for days, or its approver has left."""
    at = datetime.now(UTC) - timedelta(hours=hours)
    shown = Shown("migration/run", "cluster", {"plan": hash_text("the plan")})
    given = Approval(shown, (ApproverAnswer(ROLL_BACK, user, user, at.isoformat(), "it is slow"),))
    monkeypatch.setattr(operators, "handed_over", lambda _file, _context: given)
    monkeypatch.setattr(operators, "kept_approval", lambda _file, _context, _task: None)
    approvers = dataclasses.replace(TWO, expires=3600.0)
    asked = ApproveRollbackOperator(
        task_id="approve", cluster="sim", cluster_id=CLUSTER_ID, plan="", cluster_file="/sim.yaml", approvers=approvers
    )
    found = asked.find_prior_approval({"params": {}}, Shown("rollback/run", "cluster", {}))  # type: ignore[typeddict-item]
    assert (found is not None) is counts
    assert found is None or (found.shown.run, found.answers) == ("rollback/run", given.answers)


SENT: list[tuple[str, str, str]] = []


class Mail(BaseNotifier):
    """A notifier of a user's own."""

    template_fields = ("subject", "body")

    def __init__(self, to: str, subject: str, body: str) -> None:
        super().__init__()
        self.to, self.subject, self.body = to, subject, body

    def notify(self, context: Context) -> None:
        SENT.append((self.to, self.subject, self.body))


class Broken(BaseNotifier):
    """A notifier whose server is away."""

    def notify(self, context: Context) -> None:
        raise ConnectionError("no mail server")


MAIL = NotifierSpec(
    f"{__name__}.Mail", {"to": "ops", "subject": "{{ kmigrate.title }}", "body": "{{ kmigrate.text }} {{ kmigrate.links }}"}
)
SPEC = ClusterSpec("sim", CLUSTER_ID, "zk", "kafka", (), (), notify=(MAIL,))


class Hanging(BaseNotifier):
    """A notifier whose server accepts connections and never answers."""

    def notify(self, context: Context) -> None:
        threading.Event().wait()


def broken(name: str) -> NotifierSpec:
    return NotifierSpec(f"{__name__}.{name}")


def test_a_message_reports_that_a_request_waits_and_a_broken_notifier_stops_nothing(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    SENT.clear()
    monkeypatch.setattr(messages, "SEND_WITHIN", 1.0)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example")
    notifier = ClusterNotifier(
        (broken("Broken"), broken("Hanging"), MAIL),
        "https://wiki/runbook",
        "asks: {{ task.subject }}",
        "{{ task.body }} [G05]",
        "{{ task.request_link }}",
    )
    dag = gate(TWO, sim, notifiers=[notifier])
    given = [("ann", FINALIZE, "all is well"), ("bob", FINALIZE, "I agree")]
    with Users(api, dag.dag_id, given).at_work():
        run = run_dag(dag)
    assert tasks(run)["act"] == "success"
    assert len(SENT) == 2, "the second approver gets a message, too"
    to, subject, body = SENT[0]
    assert (to, subject) == ("ops", "asks: Finalize the migration of Kafka cluster sim to KRaft? This is irreversible.")
    assert "soak: healthy" in body
    assert "Records lost: not measured" in body, "a figure that nothing measured is no zero"
    assert "irreversible, the point of no return" in body
    assert "**" not in body
    assert "|" not in body
    link = re.search(r"https?://\S+/required_actions\?map_index=-1", body)
    assert link, "the message has the address of the request"
    assert f"/dags/{dag.dag_id}/runs/{run.run_id}/tasks/approve/" in link.group()
    assert ("Airflow does not say who started this run." in body) or ("started this run" in body)
    assert "https://wiki/runbook#g05" in body


@pytest.mark.parametrize(
    ("targets", "sent"),
    [((), True), ((MAIL,), True), ((broken("Broken"), MAIL), True), ((broken("Broken"),), False), ((broken("Hanging"),), False)],
)
def test_a_message_was_sent_if_any_notifier_sent_it(
    targets: Sequence[NotifierSpec], sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SEND_WITHIN", 1.0)
    assert ClusterNotifier(targets, "", "", "").send(Context(), "title", "text") is sent


@pytest.mark.parametrize("text", [*MARKUP, *CONTROLS, "x\nBcc: all@example.org"])
def test_a_message_mentions_nobody_and_has_no_link_nor_a_second_line_in_its_head(text: str) -> None:
    """What chats, mails and the page of a mail obey (`tests/core/test_harmless.py`); clients name groups, topics and themselves."""
    SENT.clear()
    assert ClusterNotifier((MAIL,), "", "", "").send(Context(), f"kmigrate: {text}", f"group {text} has members\nnext")
    ((_, subject, body),) = SENT
    assert subject.isprintable()
    assert defuse_markup(subject) == subject
    assert defuse_markup(body) == body
    assert all(char.isprintable() or char in "\n\t" for char in body)


def test_a_notifier_that_hangs_is_not_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    SENT.clear()
    monkeypatch.setattr(messages, "SEND_WITHIN", 1.0)
    notifier = ClusterNotifier((broken("Hanging"), MAIL), "", "", "")
    assert [notifier.send(Context(), title, "text") for title in ("first", "second")] == [True, True]
    assert [target.notifier for target in notifier.targets] == [MAIL.notifier]
    assert [subject for _, subject, _ in SENT] == ["first", "second"]


def test_a_message_shows_no_secret_and_says_so_if_a_worker_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    SENT.clear()
    monkeypatch.setattr(messages, "redact", lambda text: text.replace("hunter22", "***"))
    [notifier] = messages.failure_arguments(SPEC)["on_failure_callback"]
    where = {"ti": SimpleNamespace(task_id="backup"), "dag": DAG("migrate", schedule=None)}
    notifier({**where, "exception": ValueError("the password hunter22 was refused")})
    notifier(where)
    assert [(subject, body.strip()) for _, subject, body in SENT] == [
        ("kmigrate: task backup of migrate failed", "the password *** was refused"),
        (
            "kmigrate: task backup of migrate failed",
            "Its worker was killed or lost. The log of its last try shows how far it came.",
        ),
    ]
