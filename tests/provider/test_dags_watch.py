"""The watch every ten minutes, as a run of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, ZooKeeperServer
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Unavailable
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier
from airflow_provider_kmigrate.observe.reads import ZOOKEEPER
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.utils import dag_runs
from airflow_provider_kmigrate.utils.dag_runs import why_run_stalled
from airflow_provider_kmigrate.utils.documents import as_markdown
from tests.provider.dag_tasks import tasks
from tests.provider.simulated import Rehearsal
from tests.steps.phases import some_kraft
from tests.steps.sim_nodes import CLUSTER_ID, SimNode

RunDag = Callable[..., Any]
UNFLAGGED = "process.roles=controller\n"


@pytest.fixture
def sim(begun: Callable[..., Any]) -> Rehearsal:
    """A cluster in the second roll, some of its brokers in KRaft mode."""
    return begun(some_kraft)[0]


@pytest.fixture
def messages(sim: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What operators are notified of, title and text; the cluster file names a notifier and a deadline."""
    sent: list[str] = []

    def send(_self: ClusterNotifier, _context: Any, title: str, text: str) -> bool:
        sent.append(f"{title}: {text}")
        return True

    monkeypatch.setattr(ClusterNotifier, "send", send)
    text = yaml.safe_load(sim.path.read_text()) | {
        "notify": [{"notifier": "airflow.sdk.BaseNotifier"}],
        "deadlines": {"second_roll": "1h"},
    }
    sim.path.write_text(yaml.safe_dump(text))
    return sent


def lose_flag(sim: Rehearsal) -> SimNode:
    """A standby controller runs without the migration flag; returns it."""
    node = sim.cluster.nodes[NodeRole.CONTROLLER, sim.cluster.spec.controllers[-1].id]
    node.running = UNFLAGGED
    return node


def watching(sim: Rehearsal) -> DAG:
    dag = folder.dags_of(sim.path.parent)["kmigrate_watch__sim"]
    dag.task_dict["watch"].retries = 0
    return dag


def test_the_watch_runs_every_ten_minutes_once_it_is_unpaused(rehearse: Callable[..., Rehearsal]) -> None:
    dag = folder.dags_of(rehearse().path.parent)["kmigrate_watch__sim"]
    assert (dag.schedule, dag.catchup, dag.is_paused_upon_creation) == (timedelta(minutes=10), False, True)
    assert dag.task_dict["watch"].retries == 2, "a node that restarts does not respond for a moment"
    assert dag.task_dict["watch"].execution_timeout == timedelta(minutes=10), "one that hangs keeps no other from running"


def test_the_watch_of_a_healthy_cluster_succeeds_takes_no_lock_and_changes_nothing(sim: Rehearsal, run_dag: RunDag) -> None:
    before = (sim.restarts(), set(sim.ensemble.znodes))
    assert tasks(run_dag(watching(sim))) == {"watch": "success"}
    assert (sim.restarts(), set(sim.ensemble.znodes)) == before


def test_a_lost_flag_fails_it_and_is_in_a_journal(sim: Rehearsal, run_dag: RunDag, tmp_path: Path) -> None:
    lose_flag(sim)
    assert tasks(run_dag(watching(sim))) == {"watch": "failed"}
    assert any("G05" in path.read_text() for path in (tmp_path / "kmigrate" / "journal" / "sim").glob("*watch*.jsonl"))


def test_a_missing_original_fails_it_while_a_rollback_is_possible(sim: Rehearsal, run_dag: RunDag, tmp_path: Path) -> None:
    kept = BackupStore(tmp_path / "kmigrate" / "backup", "sim", CLUSTER_ID)
    for original in kept.folder.rglob("*broker-1*"):
        original.unlink()
    assert tasks(run_dag(watching(sim))) == {"watch": "failed"}


def test_the_watch_shows_whether_a_rollback_is_possible_if_it_succeeds_and_if_it_fails(sim: Rehearsal, run_dag: RunDag) -> None:
    """The verdict and the hash are XComs of the task, so its page in Airflow shows them."""
    before = shown(run_dag(watching(sim)))
    assert (before["readiness"]["kind"], before["readiness"]["level"]) == ("readiness", "ready")
    assert as_markdown(before["readiness"]).startswith("A rollback is possible now. It would take about")
    assert f"`{before['fingerprint']}`" in as_markdown(before["readiness"])
    sim.cluster.ensemble = (*sim.cluster.ensemble, *(ZooKeeperServer(f"z{number}:2181") for number in (2, 3)))
    run = run_dag(watching(sim))
    after = shown(run)
    assert tasks(run) == {"watch": "failed"}
    assert [(row["part"], row["code"]) for row in after["readiness"]["reasons"]] == [("ZooKeeper ensemble", "Z05")]
    assert "| ZooKeeper ensemble | [Z05]" in as_markdown(after["readiness"])
    assert after["fingerprint"] != before["fingerprint"]


def shown(run: Any) -> dict[str, Any]:
    (watch,) = run.get_task_instances()
    return {key: watch.xcom_pull(task_ids="watch", key=key) for key in ("readiness", "fingerprint")}


@pytest.mark.slow
def test_an_alarm_sends_a_message_when_it_begins_and_when_it_ends(sim: Rehearsal, messages: list[str], run_dag: RunDag) -> None:
    dag, node = watching(sim), sim.cluster.nodes[NodeRole.CONTROLLER, sim.cluster.spec.controllers[-1].id]
    right, states, sent = node.running, [], []
    for number, running in enumerate([right, UNFLAGGED, UNFLAGGED, right, right]):
        node.running = running
        states.append(tasks(run_dag(dag, logical_date=datetime(2026, 2, 1, 0, number, tzinfo=UTC)))["watch"])
        sent.append([text.split(":")[2].split(" ")[1:] for text in messages])
        messages.clear()
    assert states == ["success", "failed", "failed", "success", "success"]
    begun, over = (
        [["alarm", code, "begins"] for code in ("G05",)],
        [["alarm", code, "has", "ended"] for code in ("G05",)],
    )
    assert sent == [[], begun, [], over, []]


def test_a_phase_that_lasts_too_long_is_an_alarm(sim: Rehearsal, messages: list[str], run_dag: RunDag) -> None:
    dag = watching(sim)
    states = []
    for number in range(3):
        states.append(tasks(run_dag(dag, logical_date=datetime(2026, 3, 1, 0, number, tzinfo=UTC)))["watch"])
        sim.cluster.clock.time += 2000.0
    assert states == ["success", "success", "failed"]
    [message] = messages
    assert "[T08] The cluster has been in `second_roll` for 1.1 h" in message


@pytest.mark.slow
def test_what_cannot_be_read_ends_no_alarm_and_no_stage(
    sim: Rehearsal, messages: list[str], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that reaches neither ZooKeeper nor a controller sees no phase and no lost flag: both alarms continue, and so does the time."""
    lose_flag(sim)
    dag, sent, whole = watching(sim), [], sim.cluster.observe
    for number, blind in enumerate([False, True, False, True, False]):
        monkeypatch.setattr(sim.cluster, "observe", partial(isolated, whole) if blind else whole)
        tasks(run_dag(dag, logical_date=datetime(2026, 4, 1, 0, number, tzinfo=UTC)))
        sent.append([text.split(":")[2] for text in messages if "[T08]" in text or "[G05]" in text])
        messages.clear()
        sim.cluster.clock.time += 2000.0
    assert sent == [[" alarm G05 begins"], [], [" alarm T08 begins"], [], []]


def isolated(observe: Callable[..., ClusterView], *arguments: Any) -> ClusterView:
    view = observe(*arguments)
    controllers = {number: replace(each, answers=False, migration_flag=None) for number, each in view.controllers.items()}
    return replace(view, zk=None, controllers=controllers, unknowns=(ZOOKEEPER,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AuthenticationFailed("kafka1:9092: its certificate is not accepted"), "kafka1:9092: its certificate is not accepted"),
        (Unavailable("no answer"), "no answer"),
        (ValueError("a defect"), "ValueError; its log has the error"),
    ],
    ids=["tls", "unavailable", "defect"],
)
def test_a_watch_that_does_not_work_is_an_alarm_with_its_cause_and_ends_none(
    sim: Rehearsal, messages: list[str], run_dag: RunDag, error: Exception, shown: str
) -> None:
    right = sim.cluster.nodes[NodeRole.CONTROLLER, sim.cluster.spec.controllers[-1].id].running
    node, dag, sent = lose_flag(sim), watching(sim), []
    for number, failure in enumerate([None, error, error, None]):
        sim.failure = failure
        tasks(run_dag(dag, logical_date=datetime(2026, 6, 1, 0, number, tzinfo=UTC)))
        sent.append(sorted(text[len("kmigrate: sim: ") :].split(":")[0] for text in messages))
        assert not failure or all(shown in text for text in messages)
        messages.clear()
        node.running = right
    assert sent == [
        ["alarm G05 begins"],
        ["alarm T09 begins"],
        [],
        [f"alarm {code} has ended" for code in ("G05", "T09")],
    ]


def test_a_kill_in_the_middle_of_the_messages_loses_none(
    sim: Rehearsal, messages: list[str], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ClusterNotifier.send

    def killed(_self: ClusterNotifier, _context: Any, _title: str, _text: str) -> bool:
        raise SystemExit

    lose_flag(sim)
    dag = watching(sim)
    for number, sends in enumerate([killed, send, send]):
        monkeypatch.setattr(ClusterNotifier, "send", sends)
        with suppress(SystemExit):
            run_dag(dag, logical_date=datetime(2026, 5, 1, 0, number, tzinfo=UTC))
    assert sorted(text.split(":")[2] for text in messages) == [" alarm G05 begins"]


def test_a_node_that_is_down_is_an_alarm_once_it_has_stayed_down(sim: Rehearsal, messages: list[str], run_dag: RunDag) -> None:
    sim.cluster.stop(sim.cluster.spec.brokers[-1])
    dag = folder.dags_of(sim.path.parent)["kmigrate_watch__sim"]
    dag.task_dict["watch"].retries = 1
    dag.task_dict["watch"].retry_delay = timedelta(0)
    [instance] = run_dag(dag, logical_date=datetime(2026, 1, 1, tzinfo=UTC)).get_task_instances()
    assert (str(instance.state), instance.try_number) == ("failed", 2)
    assert len(messages) == 1, "not at the first try: a node that restarts does not respond for a moment"


def asked(state: str | None, *, paused: bool = False, running: int = 0) -> Any:
    """A task instance that Airflow answers; None: Airflow does not know the run."""

    def state_of(**_: str) -> str:
        if state is None:
            raise ValueError("404")
        return state

    return SimpleNamespace(
        get_dagrun_state=state_of, get_dag=lambda _: SimpleNamespace(is_paused=paused), get_dr_count=lambda **_: running
    )


@pytest.mark.parametrize(
    ("ti", "why", "certain"),
    [
        (asked("running"), "", False),
        (asked("success"), "", False),
        (asked("running", paused=True), "The DAG d is paused: no further task of its run begins. Unpause it.", True),
        (asked("queued", paused=True), "Run r is queued. The DAG d is paused: none of its runs begins. Unpause it.", True),
        (asked("queued", running=1), "Run r is queued. Another run of d is under way", False),
        (asked("queued"), "check the scheduler", False),
        (asked("failed"), "Run r of d failed. Clear its failed task, and it goes on.", True),
        (asked(None), "Airflow does not know run r of d", False),
    ],
)
def test_why_the_run_that_owns_the_cluster_stands(ti: Any, why: str, certain: bool) -> None:
    """A queued run may begin in a moment; what waiting does not change is an alarm at the first look."""
    text, known = why_run_stalled(ti, "d/r")
    assert (why in text, bool(text), known) == (True, bool(why), certain)


def test_an_owner_whose_dag_is_paused_is_an_alarm_at_the_first_look(
    sim: Rehearsal, messages: list[str], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback that was asked for owned the cluster, queued for ever, and the watch was healthy."""
    with sim.open(load(str(sim.path))) as access, Fence(access.tools.zk, CLUSTER_ID, "kmigrate_rollback__sim/r1"):
        pass  # its task has ended, its run owns the cluster
    monkeypatch.setattr(dag_runs, "state_of", lambda *_: "queued")
    monkeypatch.setattr(
        dag_runs, "why_paused", lambda _, dag_id: f"The DAG {dag_id} is paused: none of its runs begins. Unpause it."
    )
    dag = folder.dags_of(sim.path.parent)["kmigrate_watch__sim"]
    [instance] = run_dag(dag, logical_date=datetime(2026, 7, 1, tzinfo=UTC)).get_task_instances()
    assert (str(instance.state), instance.try_number) == ("failed", 1), "it is not tried again"
    [message] = messages
    assert "[H12] Run kmigrate_rollback__sim/r1 owns the cluster and does not go on. Run r1 is queued. The DAG" in message
