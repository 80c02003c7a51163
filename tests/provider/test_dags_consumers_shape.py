"""The graph of the DAGs that move consumer groups, as Airflow sees it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import TriggerRule
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_kmigrate.audit.request import parse
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.dag_builders.task_docs import render_group_task_page
from tests.provider.dag_tasks import names
from tests.provider.group_dags import AUDIT, BACK, FORWARD, Group, dag_of
from tests.steps.sim_group import SimGroup


class TestShape:
    def test_one_chain_of_instances_with_canaries_and_ways_back(self, made: Group) -> None:
        dag = dag_of(made(SimGroup(2)))
        dag.check_cycle()
        way = ["plan", "billing.check", "billing.to_migrating_app0", "billing.to_migrating_app1"]
        way += ["billing.mode_kafka", "billing.watch_mode_kafka"]
        way += ["billing.to_kafka_app0", "billing.to_kafka_app1", "billing.watch_to_kafka", "billing.clean_up", "done"]
        way += ["groups_moved"]
        backs = {"billing.rollback_mode_kafka", "billing.rollback_to_kafka"}
        assert [name for name in names(dag) if name not in backs] == way
        assert {name for name in names(dag) if name not in way} == backs
        assert {task.task_id for task in dag.tasks if not task.downstream_task_ids} == {*backs, "groups_moved"}

    def test_with_audits_each_canary_and_each_whole_step_has_a_verdict(self, made: Group) -> None:
        dag = dag_of(made(SimGroup(2), audit=AUDIT))
        verdicts = [name for name in names(dag) if ".verdict_" in name]
        assert verdicts == [f"billing.verdict_{step}" for step in ("canary_migrating", "mode_kafka", "canary_kafka", "to_kafka")]
        for name in verdicts:
            step = name.removeprefix("billing.verdict_")
            assert f"billing.rollback_{step}" in dag.get_task(name).downstream_task_ids

    @pytest.mark.parametrize(("instances", "compared"), [(4, True), (3, False)])
    def test_a_canary_is_compared_where_enough_others_are_left_to_compare_it_with(
        self, made: Group, instances: int, compared: bool
    ) -> None:
        dag = dag_of(made(SimGroup(instances), audit={**AUDIT, "canary": {"interval": "2s", "margin": 2, "settle": "0s"}}))
        requests: dict[str, Any] = {name: dag.get_task(name).request for name in names(dag) if ".audit_" in name}
        plans = {name.partition(".audit_")[2]: parse({**request, "policy": {}}).canary for name, request in requests.items()}
        canaries = {"canary_migrating", "canary_kafka"} if compared else set()
        assert {step for step, plan in plans.items() if plan is not None} == canaries
        for step in canaries:
            plan = plans[step]
            assert plan is not None
            assert (plan.group, plan.canary, plan.baseline) == ("billing", "app0", ("app1", "app2", "app3"))
            assert (plan.interval_ms, plan.settle_ms, plan.margin, plan.window) == (2000, 0, 2.0, 60)

    def test_an_audit_asks_for_evidence_of_this_group_since_its_step(self, made: Group) -> None:
        dag = dag_of(made(SimGroup(2), audit=AUDIT))
        begins = {
            "canary_migrating": "to_migrating_app0",
            "mode_kafka": "mode_kafka",
            "canary_kafka": "to_kafka_app0",
            "to_kafka": "watch_to_kafka",
        }
        for name, step in begins.items():
            demand = dag.task_dict[f"billing.audit_{name}"].request["policy"]["required_evidence"]
            assert demand["groups"] == ["billing"]
            assert demand["mixed"] == (["billing"] if name == "canary_migrating" else []), "old consumers write no events"
            assert f"task_ids='billing.{step}'" in demand["since"]
            assert dag.task_dict[f"billing.{step}"]._pre_execute_hook is not None

    def test_only_a_failed_step_or_a_verdict_of_fail_rolls_the_group_back(self, made: Group) -> None:
        dag = dag_of(made(SimGroup(2), audit=AUDIT))
        steps = {"mode_kafka": ["mode_kafka", "watch_mode_kafka"], "to_kafka": ["watch_to_kafka"]}
        for name in ("canary_migrating", "mode_kafka", "canary_kafka", "to_kafka"):
            back: Any = dag.get_task(f"billing.rollback_{name}")
            verdict: Any = dag.get_task(f"billing.verdict_{name}")
            assert list(back.only_after) == [f"billing.{step}" for step in steps.get(name, [])]
            assert back.verdict == verdict.path

    def test_waves_windows_and_a_schedule(self, made: Group) -> None:
        there = made(SimGroup(1), SimGroup(1, "mail"), groups_schedule="0 22 * * *")
        text = there.path.read_text().replace("name: mail", "name: mail\n  window: 22:00-04:00")
        there.path.write_text(text)
        dag = dag_of(there)
        assert dag.schedule == "0 22 * * *"
        order = names(dag)
        assert order.index("billing.clean_up") < order.index("mail.window") < order.index("mail.check")
        assert dag.get_task("mail.window").trigger_rule == TriggerRule.NONE_FAILED, "billing may be skipped"

    def test_groups_are_rolled_back_one_at_a_time_and_none_waits_for_another(self, made: Group) -> None:
        dag = dag_of(made(SimGroup(1), SimGroup(1, "mail")), BACK)
        assert dag.max_active_tasks == 1
        backs = {name: dag.get_task(f"rollback_{name}") for name in ("billing", "mail")}
        assert [back.upstream_task_ids for back in backs.values()] == [{"approve"}, {"approve"}]
        assert dag.get_task("done").upstream_task_ids == {"rollback_billing", "rollback_mail"}
        assert backs["mail"].priority_weight > backs["billing"].priority_weight, "the last wave goes back first"

    def test_both_dags_of_consumer_groups_survive_serialization_and_every_task_has_its_text(self, made: Group) -> None:
        there = made(SimGroup(2), audit=AUDIT)
        for dag_id in (FORWARD, BACK):
            dag = dag_of(there, dag_id)
            DagSerialization.from_dict(DagSerialization.to_dict(dag))
            assert all(task.doc_md for task in dag.tasks)
        with pytest.raises(KeyError):
            render_group_task_page("billing.unknown")

    def test_a_file_without_groups_has_neither(self, made: Group) -> None:
        assert not {FORWARD, BACK} & folder.dags_of(made().path.parent).keys()
