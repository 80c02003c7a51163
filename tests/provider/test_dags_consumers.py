"""The DAGs that move consumer groups, run as a whole on simulated groups."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.asset import AssetEvent, AssetModel
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_kmigrate.airflow_releases import AirflowSkipException
from airflow_provider_kmigrate.core.audit.verdict import VERSION
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.migration.plan import LEAVE
from airflow_provider_kmigrate.dag_builders import zk_to_kraft
from airflow_provider_kmigrate.exceptions import Unavailable, Unreachable
from airflow_provider_kmigrate.operators.groups import (
    CheckGroupOperator,
    GroupPlanOperator,
    GroupsMovedOperator,
    GroupStepOperator,
    RollbackGroupsOperator,
    SetModeOperator,
    SwitchInstanceOperator,
)
from airflow_provider_kmigrate.spec import load
from tests.provider.dag_tasks import tasks
from tests.provider.group_dags import APPROVED, AUDIT, BACK, Group, RunDag, dag_of
from tests.provider.lone_tasks import Memory, kept
from tests.provider.person import Person
from tests.steps.group_runs import forward as way_of
from tests.steps.group_runs import run
from tests.steps.sim_group import MIGRATING, OLD, PLAIN, SimGroup


class TestGroupsMoved:
    """The asset that comes before the cluster's migration."""

    @pytest.mark.slow
    def test_it_is_updated_once_the_last_group_has_moved(self, made: Group, run_dag: RunDag) -> None:
        there, earlier = made(SimGroup(1), SimGroup(1, "mail")), events()  # those of other tests of this process
        first = tasks(run_dag(dag_of(there), run_conf={"wave": 1}))
        assert (first["billing.clean_up"], first["done"], first["groups_moved"]) == ("success", "success", "skipped")
        assert events() == earlier
        assert tasks(run_dag(dag_of(there)))["groups_moved"] == "success"
        assert events() == earlier + 1
        inlets = zk_to_kraft.build(load(str(there.path))).get_task("preflight").inlets
        assert [asset.uri for asset in inlets] == [ASSET]
        assert zk_to_kraft.build(load(str(there.path))).schedule is None, "only people and triggers start a migration"
        assert f"`{ASSET}`" in str(zk_to_kraft.build(load(str(there.path))).get_task("preflight").doc_md)

    @pytest.mark.slow
    def test_a_group_that_no_file_names_keeps_it_back_until_it_is_accepted(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(1))
        there.others = ("legacy-report",)
        assert tasks(run_dag(dag_of(there)))["groups_moved"] == "skipped"
        there = made(SimGroup(1), later_groups=["legacy-report"])
        there.others = ("legacy-report",)
        assert tasks(run_dag(dag_of(there)))["groups_moved"] == "success"

    def test_it_is_not_updated_while_zookeeper_is_not_read(self, made: Group) -> None:
        there = made(SimGroup(1))
        context = SimpleNamespace(spec=load(str(there.path)), observer=there)
        there.reads_zookeeper = False
        operator = GroupsMovedOperator(cluster_file=str(there.path), task_id="groups_moved")
        with pytest.raises(Unavailable, match="not known"):
            operator.run_in(context, {})  # type: ignore[arg-type]

    def test_members_in_mode_kafka_count_as_moved(self, made: Group) -> None:
        group = SimGroup(2)
        there = made(group)
        run(group.context(), way_of(group)[:2])  # both migrate
        context = SimpleNamespace(spec=load(str(there.path)), observer=there)
        operator = GroupsMovedOperator(cluster_file=str(there.path), task_id="groups_moved")
        with pytest.raises(AirflowSkipException, match="billing must move"):
            operator.run_in(context, {})  # type: ignore[arg-type]
        run(group.context(), way_of(group)[2:3])
        assert group.requested_mode == "kafka"
        assert "No consumer group" in str(operator.run_in(context, {}))  # type: ignore[arg-type]


ASSET = "kmigrate://sim/groups-moved"


def events() -> int:
    """How often the asset was updated."""
    with create_session() as session:
        found = session.scalars(
            select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.uri == ASSET)
        )
        return len(list(found))


class TestForward:
    @pytest.mark.slow(seconds=45)
    def test_the_whole_way_and_once_more_for_nothing(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(2))
        group = there.groups["billing"]
        run = run_dag(dag_of(there))
        assert str(run.state) == "success", tasks(run)
        assert group.kinds() == [PLAIN, PLAIN]
        assert not any(path.endswith("/owner") for path in there.ensemble.znodes), "the last task releases the cluster"
        starts = [one.starts for one in group.instances.values()]
        again = tasks(run_dag(dag_of(there)))
        assert {state for name, state in again.items() if name.startswith("billing.")} == {"skipped"}
        assert (again["plan"], again["done"]) == ("success", "success")
        for one in group.instances.values():
            one.kind = None
        stopped = tasks(run_dag(dag_of(there)))
        assert {state for name, state in stopped.items() if name.startswith("billing.")} == {"skipped"}
        assert [one.starts for one in group.instances.values()] == starts, "an instance that was stopped stays so"

    @pytest.mark.slow
    def test_a_canary_that_is_worse_is_rolled_back_and_stops_the_chain(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(2, ill=frozenset({MIGRATING})), SimGroup(1, "mail"))
        states = tasks(run_dag(dag_of(there)))
        assert states["billing.to_migrating_app0"] == "failed"
        assert states["billing.to_migrating_app1"] == "upstream_failed"
        assert states["mail.to_migrating_app0"] == "upstream_failed"
        assert there.groups["billing"].kinds() == [OLD, OLD]
        assert there.groups["mail"].kinds() == [OLD]
        assert {states[f"billing.rollback_{name}"] for name in ("mode_kafka", "to_kafka")} <= {"skipped", "upstream_failed"}

    @pytest.mark.parametrize(
        ("fault", "failed"),
        [
            ("rebalancing_in_kafka_mode", "mode_kafka"),
            pytest.param("ill_in_kafka_mode", "watch_mode_kafka", marks=pytest.mark.slow),
        ],
    )
    def test_a_group_that_is_worse_after_the_mode_switch_is_rolled_back(
        self, made: Group, run_dag: RunDag, fault: str, failed: str
    ) -> None:
        group = SimGroup(2)
        there = made(group)
        setattr(group, fault, True)
        states = tasks(run_dag(dag_of(there)))
        assert states[f"billing.{failed}"] == "failed"
        assert states["billing.rollback_mode_kafka"] == "success"
        assert states["billing.to_kafka_app0"] == "upstream_failed"
        assert states["billing.rollback_to_kafka"] == "skipped", "it did not fail itself"
        assert group.kinds() == [MIGRATING, MIGRATING]
        assert group.requested_mode == "zookeeper"

    @pytest.mark.slow
    def test_an_audit_that_spark_does_not_make_stops_the_line_and_takes_nothing_back(
        self, made: Group, run_dag: RunDag, tmp_path: Path
    ) -> None:
        there = made(SimGroup(2), audit={**AUDIT, "result": str(tmp_path / "result"), "retries": 0})
        states = tasks(run_dag(dag_of(there)))
        assert (states["billing.audit_canary_migrating"], states["billing.rollback_canary_migrating"]) == ("failed", "skipped")
        assert states["billing.to_migrating_app1"] == "upstream_failed"
        assert there.groups["billing"].kinds() == [MIGRATING, OLD]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("verdict", "state"),
        [
            (None, "skipped"),
            ("not whole {", "skipped"),
            (json.dumps({"version": 99, "outcome": "FAIL"}), "skipped"),
            (json.dumps({"version": VERSION, "outcome": "INCONCLUSIVE"}), "skipped"),
            (json.dumps({"version": VERSION, "outcome": "PASS"}), "skipped"),
            (json.dumps({"version": VERSION, "outcome": "FAIL"}), "success"),
        ],
    )
    def test_what_an_audit_left_decides_whether_the_group_is_rolled_back(  # fixtures
        self, made: Group, run_dag: RunDag, tmp_path: Path, verdict: str | None, state: str
    ) -> None:
        group = SimGroup(2)
        there = made(group)
        run(group.context(), way_of(group)[:1])
        group.token = 0
        path = tmp_path / "verdict.json"
        if verdict is not None:
            path.write_text(verdict)
        with DAG(dag_id="back_or_not", schedule=None) as dag:
            RollbackGroupsOperator(
                cluster_file=str(there.path), task_id="back", groups=["billing"], goal="zookeeper_consumers", verdict=str(path)
            )
        assert tasks(run_dag(dag)) == {"back": state}
        assert group.kinds() == [OLD if state == "success" else MIGRATING, OLD]

    @pytest.mark.slow
    @pytest.mark.parametrize("commit_within", [150.0, 400.0])
    def test_a_group_that_starves_for_the_triggerer_fails_and_is_not_watched_again(
        self, made: Group, run_dag: RunDag, commit_within: float
    ) -> None:
        """Neither the task, which observes for 30 s, nor a watch of 300 s that is cut off could see it for themselves."""
        group = SimGroup(2)
        group.spec = replace(group.spec, bake=1000.0, commit_within=commit_within)
        there = made(group)
        run(group.context(), way_of(group)[:3])
        group.token, group.ill = 0, frozenset({MIGRATING})
        began = there.clock.time = group.clock.time
        observe = there.observe

        def bounded(*asked: Any, **named: Any) -> Any:
            assert there.clock.time < began + 5000.0, "it watches for ever"
            return observe(*asked, **named)

        there.observe = bounded  # type: ignore[method-assign]
        with DAG(dag_id=f"watch_{commit_within:.0f}", schedule=None) as dag:
            GroupStepOperator(step="watch group", cluster_file=str(there.path), task_id="watch", group="billing", deferrable=True)
        assert tasks(run_dag(dag)) == {"watch": "failed"}
        assert there.clock.time < began + 2 * commit_within

    def test_a_watch_that_could_not_observe_rolls_nothing_back(self, made: Group, run_dag: RunDag) -> None:
        """The coordinator is away for longer than the watch has patience; unknown is no reason to go back."""
        group = SimGroup(2)
        there = made(group)
        run(group.context(), way_of(group)[:3])
        group.token, observe = 0, there.observe
        away_till = there.clock.time = group.clock.time
        away_till += 2 * group.spec.switch_timeout

        def sees(*asked: Any, **named: Any) -> Any:
            group.blind = there.clock.time < away_till
            return observe(*asked, **named)

        there.observe = sees  # type: ignore[method-assign]
        with DAG(dag_id="blind_watch", schedule=None) as dag:
            file = str(there.path)
            watch = GroupStepOperator(step="watch group", cluster_file=file, task_id="watch", group="billing", deferrable=False)
            watch >> RollbackGroupsOperator(
                cluster_file=file,
                task_id="back",
                groups=["billing"],
                goal="zookeeper_consumers",
                only_after=["watch"],
                trigger_rule="one_failed",
            )
        assert tasks(run_dag(dag)) == {"watch": "failed", "back": "skipped"}
        assert group.kinds() == [MIGRATING, MIGRATING]

    @pytest.mark.slow
    @pytest.mark.parametrize("done", [True, False])
    def test_a_canary_whose_rollback_broke_off_is_not_migrated_by_the_retry(
        self, made: Group, run_dag: RunDag, done: bool
    ) -> None:
        """The command that takes it back did it, or not, and its connection broke."""
        group = SimGroup(2, ill=frozenset({MIGRATING}))
        there = made(group)
        switch, messages = there.switch, list[str]()

        def breaks(spec: Any, instance: Any, kind: str, token: int) -> None:
            messages.append(str(kind))
            if done or len(messages) != 2:
                switch(spec, instance, kind, token)
            if len(messages) == 2:
                raise Unreachable("its switch command found no connection")

        there.switch = breaks  # type: ignore[method-assign]
        with DAG(dag_id=f"canary_{done}", schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)}) as dag:
            SwitchInstanceOperator(
                deferrable=True,
                cluster_file=str(there.path),
                task_id="c",
                group="billing",
                instance="app0",
                target="migrating",
                bake=True,
            )
        assert tasks(run_dag(dag)) == {"c": "failed"}
        assert messages == ["migrating", "zookeeper"] + ([] if done else ["zookeeper"])
        assert group.kinds() == [OLD, OLD]

    @pytest.mark.usefixtures("no_variables")
    def test_the_mode_of_a_list_of_groups_ends_at_the_first_that_is_refused(
        self, made: Group, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The second has an old member: the first follows Kafka, the third was not touched, and cleared the task does the rest."""
        groups = [SimGroup(2), SimGroup(2, "mail"), SimGroup(2, "shop")]
        there = made(*groups)
        for group, far in zip(groups, (2, 1, 2), strict=True):
            run(group.context(), way_of(group)[:far])
            there.clock.time, group.token = max(there.clock.time, group.clock.time), 0
        with DAG(dag_id="modes", schedule=None) as dag:
            SetModeOperator(cluster_file=str(there.path), task_id="m", groups=[group.name for group in groups], mode="kafka")
        context: Any = {
            "dag": dag,
            "run_id": "manual__1",
            "task_state_store": Memory(),
            "params": {},
            "ti": SimpleNamespace(xcom_push=lambda *_: None),
        }
        with pytest.raises(AirflowFailException, match=r"K58.* mail .*mail_app1"):
            dag.get_task("m").execute(context)
        assert [group.requested_mode for group in groups] == [Mode.KAFKA, Mode.ZOOKEEPER, Mode.ZOOKEEPER]
        assert f"{groups[2].root}/migration/mode" not in groups[2].znodes
        assert "Stopped at group mail. In kafka mode already: billing; not changed: shop." in capsys.readouterr().out
        written = groups[0].znodes[f"{groups[0].root}/migration/mode"]
        run(groups[1].context(), way_of(groups[1])[:2])
        groups[1].token = 0
        dag.get_task("m").execute(context)
        assert [group.requested_mode for group in groups] == [Mode.KAFKA] * 3
        assert groups[0].znodes[f"{groups[0].root}/migration/mode"] == written, "it is not written again"

    @pytest.mark.usefixtures("no_variables")
    def test_a_verdict_is_kept_until_the_canary_is_back_and_no_longer(self, made: Group) -> None:
        group = SimGroup(2)
        there = made(group)
        run(group.context(), way_of(group)[:1])
        with DAG(dag_id="canary_judged", schedule=None) as dag:
            SwitchInstanceOperator(
                cluster_file=str(there.path),
                task_id="c",
                group="billing",
                instance="app0",
                target="migrating",
                deferrable=False,
            )
        store, pushed = kept(verdict=(Reason("V30", "It starves.", cause=Cause.GROUP_UNHEALTHY),)), Memory()
        ti = SimpleNamespace(xcom_push=pushed.__setitem__)
        context: Any = {"dag": dag, "run_id": "manual__1", "ti": ti, "task_state_store": store, "params": {}}
        with pytest.raises(AirflowFailException, match="K69"):
            dag.get_task("c").execute(context)
        assert (group.kinds(), store["progress"]["verdict"], pushed["causes"]) == ([OLD, OLD], [], ["group_unhealthy"])
        dag.get_task("c").execute(context)
        assert group.kinds() == [MIGRATING, OLD], "clearing the task asks for it again"

    @pytest.mark.slow
    def test_a_window_holds_though_the_group_before_was_skipped(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(1), SimGroup(1, "mail"))
        always = "name: mail\n  window: 00:00-00:00"
        there.path.write_text(there.path.read_text().replace("name: mail", always))
        states = tasks(run_dag(dag_of(there), run_conf={"wave": 2}))
        assert states["billing.clean_up"] == "skipped"
        assert states["mail.window"] == "success", "it was asked, not skipped with what stands before it"

    @pytest.mark.slow
    @pytest.mark.parametrize("conf", [{"wave": 7}, {"wave": 0}])
    def test_a_wave_that_the_file_does_not_have_is_refused(self, made: Group, run_dag: RunDag, conf: dict[str, Any]) -> None:
        there = made(SimGroup(1))
        states = tasks(run_dag(dag_of(there), run_conf=conf))
        assert (states["plan"], states["billing.check"]) == ("failed", "upstream_failed")
        assert there.groups["billing"].kinds() == [OLD]

    @pytest.mark.slow
    def test_a_wave(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(1), SimGroup(1, "mail"))
        run = run_dag(dag_of(there), run_conf={"wave": 2})
        assert str(run.state) == "success"
        assert there.groups["billing"].kinds() == [OLD]
        assert there.groups["mail"].kinds() == [PLAIN]


@pytest.mark.slow
class TestBack:
    @pytest.mark.parametrize(
        ("goal", "kinds"),
        [("zookeeper_consumers", [OLD, OLD]), ("zookeeper_mode", [MIGRATING] * 2), ("kafka_mode", [MIGRATING] * 2)],
    )
    def test_a_group_is_rolled_back_from_the_end_to_the_goal_that_was_asked_for(
        self, made: Group, run_dag: RunDag, goal: str, kinds: list[object]
    ) -> None:
        there = made(SimGroup(2))
        run_dag(dag_of(there))
        run = run_dag(dag_of(there, BACK), run_conf={**APPROVED, "goal": goal})
        assert str(run.state) == "success", tasks(run)
        assert there.groups["billing"].kinds() == kinds
        assert there.groups["billing"].requested_mode == ("kafka" if goal == "kafka_mode" else "zookeeper")

    def test_only_the_groups_that_were_named_are_rolled_back(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(1), SimGroup(1, "mail"))
        run_dag(dag_of(there))
        states = tasks(run_dag(dag_of(there, BACK), run_conf={**APPROVED, "groups": ["mail"]}))
        assert states["rollback_billing"] == "skipped"
        assert there.groups["mail"].kinds() == [OLD]
        assert there.groups["billing"].kinds() == [PLAIN]

    def test_a_group_that_the_file_does_not_have_is_refused(self, made: Group, run_dag: RunDag) -> None:
        states = tasks(run_dag(dag_of(made(SimGroup(1)), BACK), run_conf={**APPROVED, "groups": ["bilings"]}))
        assert (states["plan"], states["rollback_billing"]) == ("failed", "upstream_failed")

    def test_a_group_that_cannot_be_rolled_back_stops_no_other(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(1), SimGroup(1, "mail"))
        run_dag(dag_of(there))
        switch = there.switch

        def unreachable(group: Any, *rest: Any) -> None:
            if group.name == "mail":
                raise Unreachable("mail's host is down")
            switch(group, *rest)

        there.switch = unreachable  # type: ignore[method-assign]
        states = tasks(run_dag(dag_of(there, BACK), run_conf=APPROVED))
        assert (states["rollback_mail"], states["rollback_billing"], states["done"]) == ("failed", "success", "upstream_failed")
        assert there.groups["billing"].kinds() == [OLD]

    def test_an_administrator_sees_the_plan_and_may_decline(self, made: Group, run_dag: RunDag) -> None:
        there = made(SimGroup(2))
        run_dag(dag_of(there))
        with Person(BACK, LEAVE).at_work() as person:
            run = run_dag(dag_of(there, BACK))
        assert str(run.state) == "failed"
        assert person.asked is not None
        assert "app1, app0 become migrating consumers one by one, mode zookeeper" in (person.asked.body or "")
        assert there.groups["billing"].kinds() == [PLAIN, PLAIN]


@pytest.mark.parametrize(
    ("operator", "arguments", "message"),
    [
        (SetModeOperator, {"groups": ["billing", "search"], "mode": "kafka"}, "has no consumer group 'search'; it has billing."),
        (SetModeOperator, {"groups": "search", "mode": "kafka"}, "has no consumer group 'search'; it has billing."),
        (SetModeOperator, {"groups": ["billing"], "mode": "kafkaesque"}, "has no mode 'kafkaesque'; it has "),
        (CheckGroupOperator, {"group": "search"}, "has no consumer group 'search'; it has billing."),
        (GroupStepOperator, {"group": "search", "step": "clean up"}, "has no consumer group 'search'; it has billing."),
        (RollbackGroupsOperator, {"groups": ["search"]}, "has no consumer group 'search'; it has billing."),
        (
            RollbackGroupsOperator,
            {"groups": ["billing"], "goal": "new"},
            "has no goal 'new'; it has zookeeper_consumers, zookeeper_mode, kafka_mode.",
        ),
        (GroupPlanOperator, {"groups": ["search"]}, "has no consumer group 'search'; it has billing."),
        (SwitchInstanceOperator, {"group": "search", "instance": "app0", "target": "kafka"}, "has no consumer group 'search'"),
        (
            SwitchInstanceOperator,
            {"group": "billing", "instance": "x", "target": "kafka"},
            "has no instance of group billing 'x'; it has",
        ),
        (SwitchInstanceOperator, {"group": "billing", "instance": "app0", "target": "new"}, "has no target 'new'; it has "),
    ],
)
def test_what_the_cluster_file_does_not_have_is_refused(
    made: Group, no_variables: None, operator: type[Any], arguments: dict[str, Any], message: str
) -> None:
    group = SimGroup(2)
    there = made(group)
    with DAG(dag_id="wrong", schedule=None) as dag:
        task = operator(task_id="task", cluster_file=str(there.path), **arguments)
    codes: list[str] = []
    ti = SimpleNamespace(xcom_push=lambda _, found: codes.extend(found))
    with pytest.raises(AirflowFailException) as caught:
        task.execute({"dag": dag, "run_id": "manual__1", "ti": ti, "task_state_store": {}, "params": {}})
    assert message in str(caught.value)
    assert "[F09]" in str(caught.value)
    assert group.kinds() == [OLD, OLD]


def test_a_group_that_was_not_read_is_not_planned(made: Group, no_variables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    there = made(SimGroup(2))
    observe = there.observe
    monkeypatch.setattr(there, "observe", lambda *asked, **named: replace(observe(*asked, **named), groups={}))
    with DAG(dag_id="unread", schedule=None) as dag:
        task = GroupPlanOperator(task_id="task", cluster_file=str(there.path), groups=["billing"])
    with pytest.raises(Unreachable, match=r"K30.*Group billing could not be read"):
        task.execute({"dag": dag, "run_id": "manual__1", "ti": None, "params": {}})  # type: ignore[typeddict-item]
