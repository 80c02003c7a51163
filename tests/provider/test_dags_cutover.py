"""The DAG of a group that leaves ZooKeeper by a cutover, run as a whole on a simulated group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate.core.cluster_state.spec import GroupWay
from airflow_provider_kmigrate.core.groups.cutover_state import CutoverTurn
from airflow_provider_kmigrate.core.migration.plan import END
from airflow_provider_kmigrate.steps.cutover import CutOver
from airflow_provider_kmigrate.steps.run import StepContext
from tests.provider.dag_tasks import names, tasks
from tests.provider.group_dags import APPROVED, AUDIT, BACK, Group, RunDag, dag_of
from tests.provider.person import Person
from tests.provider.simulated_groups import GroupRehearsal
from tests.steps.sim_canary import CanaryGroup
from tests.steps.sim_group import MIGRATING, OLD, PLAIN, SimGroup
from tests.steps.sim_nodes import CLUSTER_ID


def make_group(name: str = "billing", **fields: object) -> SimGroup:
    group = SimGroup(2, name, **fields)  # type: ignore[arg-type]
    group.spec = replace(group.spec, way=GroupWay.CUTOVER)
    return group


def test_one_task_stops_copies_and_starts_and_the_watch_and_the_rollback_are_beside_it(made: Group) -> None:
    dag = dag_of(made(make_group()))
    way = ["plan", "billing.check", "billing.cutover", "billing.watch_cutover", "billing.clean_up", "done", "groups_moved"]
    assert [name for name in names(dag) if name != "billing.rollback_cutover"] == way
    assert dag.get_task("billing.rollback_cutover").upstream_task_ids == {"billing.cutover", "billing.watch_cutover"}
    assert not dag.get_task("billing.cutover").deferrable, "the pause must not wait for the triggerer"  # type: ignore[attr-defined]
    assert all(task.doc_md for task in dag.tasks)


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "codes"), [({}, []), ({"ill": frozenset({PLAIN})}, ["K69", "V30"])])
def test_while_a_canary_bakes_the_triggerer_watches_it(
    made: Group, run_dag: RunDag, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], codes: list[str]
) -> None:
    """It bakes, and a partition may be without a commit, for longer than the task waits itself."""
    group = CanaryGroup(**fields)
    group.spec = replace(group.spec, bake=400.0, commit_within=100.0)
    dag = dag_of(made(group))
    assert dag.get_task("billing.cutover").deferrable  # type: ignore[attr-defined]
    assert tasks(run_dag(dag))["billing.cutover"] == ("failed" if codes else "success")
    assert group.kinds() == [OLD if codes else PLAIN] * 2
    said = "".join(capsys.readouterr())
    assert "The triggerer observed; ready." in said
    assert all(code in said for code in codes)


def make_by_hand(made: Group) -> GroupRehearsal:
    there = made(make_group(), rehearsal=True)
    document = yaml.safe_load(there.path.read_text())
    del document["groups"][0]["switch"]
    document["groups"][0]["by_hand"] = True
    there.path.write_text(yaml.safe_dump(document))
    return there


def test_people_cut_it_over_once_an_operator_has_confirmed(made: Group, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    there, asked = make_by_hand(made), list[str]()
    ask = CutOver._ask_people

    def obey(step: CutOver, context: StepContext, turn: CutoverTurn) -> None:
        ask(step, context, turn)
        for name in turn.instances:
            asked.append(f"{name} {turn.kind}")
            there.switch(step.group, step.group.instance(name), turn.kind, there.groups["billing"].token)

    monkeypatch.setattr(CutOver, "_ask_people", obey)
    states = tasks(run_dag(dag_of(there), run_conf={"approve_cutover": CLUSTER_ID}))
    assert (states["billing.approve"], states["billing.cutover"]) == ("success", "success")
    assert asked == ["app0 stopped", "app1 stopped", "app0 kafka", "app1 kafka"]
    assert there.groups["billing"].kinds() == [PLAIN, PLAIN]


def test_an_operator_confirms_that_people_are_ready(made: Group, run_dag: RunDag) -> None:
    there = make_by_hand(made)
    dag = dag_of(there)
    assert dag.get_task("billing.cutover").upstream_task_ids == {"billing.approve"}
    assert dag.get_task("billing.approve").upstream_task_ids == {"billing.check"}
    group = there.groups["billing"]
    for one in group.instances.values():  # they have moved: no approver is asked
        one.kind = PLAIN
    states = tasks(run_dag(dag))
    assert {state for name, state in states.items() if name.startswith("billing.")} == {"skipped"}


@pytest.mark.slow
def test_the_request_of_a_cutover_by_hand_shows_the_plan(made: Group, run_dag: RunDag) -> None:
    dag = dag_of(make_by_hand(made))
    with Person(dag.dag_id, END).at_work() as person:
        run_dag(dag)
    assert person.asked is not None
    body = person.asked.body or ""
    assert "1. billing: " in body
    assert "Fingerprint: " in body
    assert "Groups can be rolled back from any state" in body


def test_an_audit_judges_the_cutover(made: Group) -> None:
    dag = dag_of(made(make_group(), audit=AUDIT))
    assert [name for name in names(dag) if ".verdict_" in name] == ["billing.verdict_cutover"]


@pytest.mark.slow
def test_there_and_back_and_once_more_for_nothing(made: Group, run_dag: RunDag) -> None:
    there = made(make_group())
    group = there.groups["billing"]
    assert str(run_dag(dag_of(there)).state) == "success"
    assert group.kinds() == [PLAIN, PLAIN]
    assert not group.children(f"{group.root}/migration")
    again = tasks(run_dag(dag_of(there)))
    assert {state for name, state in again.items() if name.startswith("billing.")} == {"skipped"}
    assert str(run_dag(dag_of(there, BACK), run_conf=APPROVED).state) == "success"
    assert group.kinds() == [OLD, OLD]
    assert [one.starts for one in group.instances.values()] == [2, 2]


@pytest.mark.slow
def test_a_new_version_that_commits_nothing_is_turned_back_and_the_next_group_waits(made: Group, run_dag: RunDag) -> None:
    there = made(make_group(ill=frozenset({PLAIN})), SimGroup(1, "mail"))
    states = tasks(run_dag(dag_of(there)))
    assert states["billing.cutover"] == "failed"
    assert states["mail.check"] == "upstream_failed"
    assert there.groups["billing"].kinds() == [OLD, OLD]
    assert there.groups["mail"].kinds() == [OLD]
    held = tasks(run_dag(dag_of(there)))
    assert held["billing.check"] == "failed", "until the operator releases the group (K69)"


@pytest.mark.slow
def test_groups_of_both_ways_move_in_one_run(made: Group, run_dag: RunDag) -> None:
    there = made(make_group(), SimGroup(1, "mail"))
    run = run_dag(dag_of(there))
    assert str(run.state) == "success", tasks(run)
    assert [set(group.kinds()) for group in there.groups.values()] == [{PLAIN}, {PLAIN}]
    assert MIGRATING not in there.groups["billing"].kinds()
