"""The plan of a migration, from one observation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Partition
from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec, AuditSpec, Policy, StopPoint
from airflow_provider_kmigrate.core.migration.durations import NEWEST, Work
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.migration.plan_document import (
    describe_drift,
    list_common_lines,
    list_lines,
    render_document,
    require_reviewed_plan,
    seal,
)
from airflow_provider_kmigrate.core.migration.plan_facts import list_start_seconds
from airflow_provider_kmigrate.core.shared.text import format_duration
from airflow_provider_kmigrate.exceptions import Refused
from tests.core.plan_facts import BEFORE, DRIFTS, facts_of, tasks_of, with_original, with_unit
from tests.core.preflight_rows import ROWS
from tests.core.preflight_views import DEFECTS, Case, broker_1, healthy

CANARY = "canary-5up3r-s3cret"


def lines_of(plan: Mapping[str, Any], task: str) -> dict[str, tuple[str | None, str | None]]:
    return {change["key"]: (change["before"], change["after"]) for change in tasks_of(plan)[task]["file"]}


class TestWhatIsPlanned:
    def test_each_node_restarts_in_each_of_its_stages(self) -> None:
        tasks = tasks_of(plan_migration(facts_of(healthy())))
        restarted = [name for name, task in tasks.items() if task["node"]]
        expected = [*(f"controllers.provision_{i}" for i in (3000, 3001, 3002)), *(f"first_roll.broker_{i}" for i in range(3))]
        expected += [*(f"second_roll.broker_{i}" for i in range(3)), *(f"finalize.controller_{i}" for i in (3000, 3001, 3002))]
        assert restarted == expected
        assert not any(task["is_done"] or task["refused"] for task in tasks.values())

    def test_the_lines_of_each_stage_are_those_since_the_stage_before(self) -> None:
        plan = plan_migration(facts_of(healthy()))
        assert lines_of(plan, "first_roll.broker_1")["zookeeper.metadata.migration.enable"] == (None, "true")
        assert lines_of(plan, "second_roll.broker_1")["zookeeper.metadata.migration.enable"] == ("true", None)
        assert lines_of(plan, "second_roll.broker_1")["process.roles"] == (None, "broker")
        assert lines_of(plan, "controllers.provision_3001")["node.id"] == (None, "3001")
        assert set(lines_of(plan, "finalize.controller_3001")) == {"zookeeper.connect", "zookeeper.metadata.migration.enable"}

    def test_the_zookeeper_controller_restarts_last_and_the_plan_says_why(self) -> None:
        tasks = tasks_of(plan_migration(facts_of(healthy())))
        assert "ZooKeeper controller" in tasks["first_roll.broker_0"]["last_because"]
        assert not tasks["first_roll.broker_1"]["last_because"]

    def test_what_a_restart_disturbs_is_counted_or_not_known(self) -> None:
        view, facts = healthy()
        alone = Partition("lonely", 0, 2, (2,), (2,))
        seen = tasks_of(plan_migration(facts_of((replace(view, partitions=(*(view.partitions or ()), alone)), facts))))
        assert (seen["first_roll.broker_2"]["alone"], seen["first_roll.broker_1"]["alone"]) == (1, 0)
        assert seen["first_roll.broker_2"]["leaders"] == 1 + sum(p.leader == 2 for p in view.partitions or ())
        unseen = tasks_of(plan_migration(facts_of((replace(view, partitions=None), facts))))
        assert unseen["first_roll.broker_2"]["leaders"] is unseen["first_roll.broker_2"]["alone"] is None

    def test_a_file_that_cannot_be_written_says_why(self) -> None:
        view, facts = healthy()
        without = tasks_of(plan_migration(replace(facts_of((view, facts)), originals={0: {}, 1: {}})))
        assert without["first_roll.broker_2"]["refused"] == "the original of broker 2 is not known here"
        assert "[O06]" in without["first_roll.broker_1"]["refused"], "an empty file is no broker's"
        mixed = tasks_of(plan_migration(facts_of((view, facts), metadata_version=None)))
        assert all("inter.broker.protocol.version" in task["refused"] for task in mixed.values() if task["node"])

    def test_no_secret_is_in_it(self) -> None:
        view, facts = healthy()
        files = replace(
            view.broker(1).files, properties={**(view.broker(1).files.properties or {}), "ssl.keystore.password": CANARY}
        )
        secret = broker_1(files=files)(view, facts)
        spec = replace(secret[1].spec, controller_properties={"sasl.jaas.config": CANARY, "x.y.secret": CANARY})
        plan = plan_migration(facts_of((secret[0], replace(secret[1], spec=spec))))
        assert CANARY not in json.dumps(plan) + render_document(plan)
        assert "sasl.jaas.config" in json.dumps(plan), "that it changes is shown"

    @pytest.mark.parametrize("change", [pytest.param(row[1], id=str(row[0])) for row in (*ROWS, *DEFECTS)])
    def test_whatever_preflight_meets_can_be_planned_and_shown(self, change: Callable[..., Case]) -> None:
        facts = facts_of(change(*healthy()))
        plan = plan_migration(facts)
        assert plan == json.loads(json.dumps(plan)), "JSON values only"
        shown = render_document(plan)
        assert all(f"`{task}`" in shown for task in tasks_of(plan))


def basis(low: float, expected: float, **counts: int) -> dict[str, float]:
    unknown = {"measured": 0, "starts": 0, "elsewhere": 0, "opening": 0.0, "observation": 0.0}
    return {"low": low, "expected": expected, "high": 600.0, **unknown, **counts}


class TestHowLong:
    def test_without_a_measurement_a_restart_is_assumed_from_the_replicas_and_the_plan_says_so(self) -> None:
        view, facts = healthy()
        partitions = tuple(Partition("orders", number, 0, (0, 1, 2), (0, 1, 2)) for number in range(1000))
        plan = plan_migration(facts_of((replace(view, partitions=partitions), facts)))
        assert plan["restart_seconds"] == basis(5.0, 55.0)
        assert "assumed" in render_document(plan)
        unread = plan_migration(facts_of((replace(view, partitions=None), facts)))
        assert unread["restart_seconds"] == basis(5.0, 180.0)

    def test_what_this_cluster_needed_counts(self) -> None:
        plan = plan_migration(facts_of(healthy(), task_seconds={Work.RESTART: [40.0, 20.0, 900.0]}, start_seconds=[1.0]))
        assert plan["restart_seconds"] == basis(20.0, 40.0, measured=3)
        assert tasks_of(plan)["first_roll.broker_1"]["seconds"]["expected"] == 40.0

    @pytest.mark.parametrize(("restarts", "low", "high"), [([], 0.5, 3.0), ([60.0], 0.6, 2.0)])
    def test_the_plan_says_within_what_nine_of_ten_migrations_stayed(
        self, restarts: list[float], low: float, high: float
    ) -> None:
        plan = plan_migration(facts_of(healthy(), task_seconds={Work.RESTART: restarts}))
        work = sum(stage["seconds"]["expected"] for stage in plan["stages"] if stage["stage"] != "soak") - 2 * 600.0
        assert plan["seconds"]["expected"] == 86400.0 + 1200.0 + work, "a day of soak and two bakes of ten minutes"
        shortest, longest = (format_duration(1000 * (1200.0 + times * work)) for times in (low, high))
        said = f" took {low:g} to {high:g} times what was expected without bakes, here {shortest} to {longest}"
        assert said in render_document(plan)
        assert (" before a restart of their cluster was measured" in render_document(plan)) == (not restarts)
        assert "Nine of ten" not in render_document({**plan, "of": "rollback"}), "only migrations were measured"

    def test_only_the_newest_count_because_machines_and_logs_change(self) -> None:
        plan = plan_migration(facts_of(healthy(), task_seconds={Work.RESTART: [900.0] * 9 + [20.0] * NEWEST}))
        assert plan["restart_seconds"] == basis(20.0, 20.0, measured=NEWEST)

    def test_each_kind_of_task_has_its_own_time_and_a_task_that_only_checks_has_one_too(self) -> None:
        measured = {Work.PROVISION: [7.0], Work.FINALIZE: [9.0], Work.COPY: [5.0], Work.CHECK: [2.0]}
        tasks = tasks_of(plan_migration(facts_of(healthy(), task_seconds=measured)))
        expected = {name: task["seconds"]["expected"] for name, task in tasks.items()}
        assert (expected["controllers.provision_3001"], expected["finalize.controller_3001"]) == (7.0, 9.0)
        assert (expected["copy.copied"], expected["copy.equivalence"], expected["finalize.finalized"]) == (5.0, 2.0, 3.5)
        assert expected["approve"] == 0.0, "a person answers when he answers"
        elsewhere = tasks_of(plan_migration(facts_of(healthy(), tasks_elsewhere=measured)))
        assert elsewhere["copy.copied"]["seconds"]["expected"] == 1.0, "a copy depends on the cluster's partitions"
        assert elsewhere["copy.equivalence"]["seconds"]["expected"] == 2.0

    def test_the_wait_for_the_new_controllers_has_its_own_time_until_they_follow_one_leader(self) -> None:
        def ready_seconds(**more: Any) -> float:
            expected: float = tasks_of(plan_migration(facts_of(healthy(), **more)))["controllers.ready"]["seconds"]["expected"]
            return expected

        assert ready_seconds() == 7.0
        assert ready_seconds(start_seconds=[10.0]) == 7.5
        assert ready_seconds(start_seconds=[10.0], task_seconds={Work.READY: [30.0, 20.0, 25.0]}) == 25.0
        view, facts = healthy()
        for node in facts.spec.controllers:
            controller = replace(view.controller(node.id), migration_flag=True)
            view = replace(view, controllers={**view.controllers, node.id: controller})
        started = tasks_of(plan_migration(facts_of((view, facts))))["controllers.ready"]
        assert started["seconds"]["expected"] == 0.5, "they are started, so it only checks"

    def test_a_controller_without_another_one_waits_for_a_successor_before_it_stops(self) -> None:
        view, facts = healthy()
        alone = replace(facts.spec, controllers=facts.spec.controllers[:1])
        one = tasks_of(plan_migration(facts_of((view, replace(facts, spec=alone)), start_seconds=[6.0])))
        three = tasks_of(plan_migration(facts_of(healthy(), start_seconds=[6.0])))
        name = f"finalize.controller_{alone.controllers[0].id}"
        assert one[name]["seconds"]["expected"] == three[name]["seconds"]["expected"] + 5.0

    def test_before_the_first_restart_the_brokers_last_starts_count(self) -> None:
        plan = plan_migration(facts_of(healthy(), start_seconds=[4.0, 6.0, 30.0], tasks_elsewhere={Work.RESTART: [90.0]}))
        assert plan["restart_seconds"] == basis(4.0, 17.0, starts=3)
        assert tasks_of(plan)["controllers.provision_3001"]["seconds"]["expected"] == 6.5
        assert "twice the last start" in render_document(plan)

    def test_a_controller_has_no_logs_to_load(self) -> None:
        plan = plan_migration(facts_of(healthy(), start_seconds=[300.0]))
        assert plan["restart_seconds"]["expected"] == 605.0
        of = {name: task["seconds"]["expected"] for name, task in tasks_of(plan).items()}
        names = ("controllers.provision_3001", "controllers.ready", "finalize.controller_3001")
        assert [of[name] for name in names] == [20.5, 14.5, 40.5]
        low = {name: task["seconds"]["low"] for name, task in tasks_of(plan).items()}
        assert all(low[name] <= of[name] for name in of), "on a good day it takes no longer than expected"

    def test_each_task_opens_the_cluster_and_compares_it_with_the_plan_before_it_acts(self) -> None:
        view, facts = healthy()
        case = replace(view, took=2.0), facts
        without, plan = (plan_migration(facts_of(case, start_seconds=[6.0], opening=opening)) for opening in (0.0, 3.0))
        assert plan["restart_seconds"] == {
            **without["restart_seconds"],
            "low": 11.0,
            "expected": 22.0,
            "opening": 3.0,
            "observation": 2.0,
        }
        more = {
            name: task["seconds"]["expected"] - tasks_of(without)[name]["seconds"]["expected"]
            for name, task in tasks_of(plan).items()
        }
        acting = ("controllers.provision_3001", "second_roll.broker_1", "finalize.controller_3001")
        watching = ("controllers.ready", "copy.equivalence")
        assert {more[name] for name in acting} == {5.0}
        assert {more[name] for name in watching} == {3.0}
        assert "and 10 s; no restart was measured" in render_document(plan)
        measured = plan_migration(facts_of(case, task_seconds={Work.RESTART: [40.0]}, opening=3.0))
        assert measured["restart_seconds"]["expected"] == 40.0, "what was measured has them already"

    def test_other_clusters_count_only_while_this_one_has_none(self) -> None:
        plan = plan_migration(facts_of(healthy(), tasks_elsewhere={Work.RESTART: [10.0, 30.0]}))
        assert plan["restart_seconds"] == basis(10.0, 20.0, elsewhere=2)
        assert "the median of the newest 2 of other clusters here" in render_document(plan)
        own = plan_migration(
            facts_of(healthy(), task_seconds={Work.RESTART: [40.0]}, tasks_elsewhere={Work.RESTART: [10.0, 30.0]})
        )
        assert own["restart_seconds"] == basis(40.0, 40.0, measured=1)

    @pytest.mark.parametrize(
        ("started", "registered", "seconds"),
        [(100.0, 106.0, [6.0]), (None, 106.0, []), (100.0, 99.0, []), (100.0, 1000.0, []), (100.0, 700.0, [600.0])],
    )
    def test_a_start_is_measured_until_the_broker_registered_itself(
        self, started: float | None, registered: float, seconds: list[float]
    ) -> None:
        view, facts = healthy()
        view, _ = broker_1(process=replace(view.broker(1).process, started_at=started))(view, facts)
        assert list_start_seconds(view, {1: registered}, 600.0) == seconds

    def test_only_the_first_of_each_pass_bakes(self) -> None:
        view, facts = healthy()
        spec = replace(facts.spec, policy=Policy(canary_bake=1000.0, min_soak=7.0))
        tasks = tasks_of(plan_migration(facts_of((view, replace(facts, spec=spec)))))
        baked = [name for name, task in tasks.items() if task["seconds"]["low"] >= 1000.0]
        assert baked == ["first_roll.broker_0", "second_roll.broker_0"]
        assert tasks["soak"]["seconds"] == {"low": 7.0, "expected": 7.0, "high": 7.0}

    def test_the_whole_is_the_sum_of_its_stages(self) -> None:
        plan = plan_migration(facts_of(healthy()))
        for name in ("low", "expected", "high"):
            assert plan["seconds"][name] == pytest.approx(sum(task["seconds"][name] for task in tasks_of(plan).values()))

    def test_what_waits_for_a_person_or_a_time_is_named_not_counted(self) -> None:
        view, facts = healthy()
        spec = replace(facts.spec, windows=("01:00-05:00",), stop_after=(StopPoint.HYBRID,))
        named = " ".join(plan_migration(facts_of((view, replace(facts, spec=spec))))["uncounted"])
        assert "01:00-05:00" in named
        assert "hybrid" in named

    def test_the_point_of_no_return_is_the_first_task_without_a_rollback(self) -> None:
        plan = plan_migration(facts_of(healthy()))
        assert plan["point_of_no_return"] == "finalize.controller_3000"
        assert [stage["stage"] for stage in plan["stages"] if stage["rollback_seconds"] is None] == ["finalize"]

    def test_who_must_approve_is_said(self) -> None:
        view, facts = healthy()
        spec = replace(facts.spec, approvers=ApproverSpec(("ann", "bob", "cyd"), required=2))
        assert "2 of ann, bob, cyd must approve" in render_document(plan_migration(facts_of((view, replace(facts, spec=spec)))))


class TestWhatIsNotKnown:
    def test_each_node_needs_space_and_what_is_free_is_known_or_not(self) -> None:
        view, _ = healthy()
        view, facts = broker_1(files=replace(view.broker(1).files, free=7 << 20))(*healthy())
        plan = plan_migration(facts_of((view, facts), room={"broker 1": 3 << 30}))
        rows = {(need["node"], need["writes"].split(" ")[1]): (need["needs"], need["free"]) for need in plan["space"]}
        assert rows["broker 1", "properties"] == (1 << 20, 7 << 20)
        assert rows["broker 1", "metadata"] == (2 << 30, 3 << 30)
        assert rows["broker 0", "metadata"][1] is rows["controller 3000", "metadata"][1] is None
        assert {node.name for node in facts.spec.nodes()} < {need["node"] for need in plan["space"]}
        shown = render_document(plan)
        assert "| broker 1 | the metadata log with its snapshots, by Kafka's defaults | 2,048 MiB | 3,072 MiB |" in shown
        assert "| 2,048 MiB | not known |" in shown

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"audit": None}, "the cluster file has no section `audit`"),
            ({"audit": AuditSpec("c", "r", exclude_topics=("logs",))}, "records of logs (`audit.exclude_topics`)"),
            ({"audit": AuditSpec("c", "r", topics=("orders",))}, "records of all topics but orders"),
            ({"audit": AuditSpec("c", "r")}, "of each partition all but the newest"),
            ({"audit": AuditSpec("c", "r", sample_fraction=0.25)}, "all but a sample of 0.25"),
            ({"audit": AuditSpec("c", "r")}, "no client writes events"),
            ({"audit": AuditSpec("c", "r", resetting_groups=("replay",))}, "what groups replay read again"),
            ({"later_groups": ("legacy",)}, "legacy (`later_groups`)"),
        ],
    )
    def test_what_the_cluster_file_leaves_out_is_named(self, change: dict[str, Any], text: str) -> None:
        view, facts = healthy()
        plan = plan_migration(facts_of((view, replace(facts, spec=replace(facts.spec, **change)))))
        assert any(text in line for line in plan["not_compared"])
        assert text in render_document(plan)

    def test_what_was_not_read_and_what_kafka_does_not_know_is_named(self) -> None:
        facts = with_original(**{"my.own.key": "1"})
        facts = replace(facts, findings={"unknown": ["C11"]}, originals={0: facts.originals[0], 1: facts.originals[1]})
        listed = " ".join(plan_migration(facts)["not_compared"])
        assert "my.own.key" in listed
        assert "C11" in listed
        assert "the originals of broker 2" in listed


class TestDrift:
    @pytest.mark.parametrize("name", DRIFTS)
    def test_each_input_that_changes_is_named_and_changes_the_fingerprint(self, name: str) -> None:
        facts, sentence = DRIFTS[name]
        saved, now = plan_migration(BEFORE), plan_migration(facts)
        assert sentence in describe_drift(saved, now)
        assert saved["fingerprint"] != now["fingerprint"]
        with pytest.raises(Refused) as refused:
            require_reviewed_plan(now, saved["fingerprint"])
        assert [reason.code for reason in refused.value.reasons] == ["H16"]

    def test_lines_that_would_be_written_otherwise_are_named(self) -> None:
        spec = replace(BEFORE.spec, policy=Policy(fast_failover=True))
        drift = describe_drift(plan_migration(BEFORE), plan_migration(replace(BEFORE, spec=spec)))
        assert any("first_roll.broker_1 would change other lines" in line and "auto.leader.rebalance" in line for line in drift)

    def test_what_moves_all_the_time_is_no_drift(self) -> None:
        view = replace(BEFORE.view, partitions=(), taken_at=999.0)
        later = replace(with_unit(MainPID="8", ActiveState="inactive"), made_ms=5, took=99.0, task_seconds={Work.RESTART: [1.0]})
        saved, now = plan_migration(BEFORE), plan_migration(later)
        assert describe_drift(saved, now) == ()
        assert plan_migration(replace(BEFORE, view=view))["fingerprint"] == saved["fingerprint"]
        require_reviewed_plan(now, saved["fingerprint"])
        require_reviewed_plan(now, "")  # a run that is bound to no plan

    def test_an_edited_plan_writes_nothing_to_the_terminal_but_text(self) -> None:
        now = plan_migration(BEFORE)
        edited = deepcopy(now)
        edited["stages"][3]["tasks"][0]["file"].append(
            {"key": "x\x1b[2J", "before": None, "after": "y\n* The cluster file is the same."}
        )
        drift = describe_drift(seal(edited), now)
        assert len(drift) == 1
        assert not any(character in line for line in drift for character in "\x1b\n")

    @pytest.mark.parametrize(
        ("alter", "why"),
        [
            (lambda plan: plan | {"cluster_id": "another"}, "the plan of cluster another"),
            (lambda plan: plan | {"kind": "readiness"}, "no plan of version"),
            (lambda plan: plan | {"of": "rollback"}, "of another kind: rollback, not migration"),
            (lambda plan: plan | {"version": 2}, "of version 1"),
            (lambda plan: plan | {"inputs": plan["inputs"] | {"kmigrate": "0.9"}}, "altered: its inputs"),
            (lambda plan: plan | {"inputs": plan["inputs"] | {"the cluster file": "0"}}, "altered: its inputs"),
            (lambda plan: {name: value for name, value in plan.items() if name != "stages"}, "no whole plan"),
            (lambda plan: plan | {"stages": [{}]}, "no whole plan"),
            (lambda plan: plan | {"inputs": None}, "altered"),
            (lambda _: {}, "no whole plan"),
        ],
    )
    def test_a_plan_that_is_none_is_refused_by_name(self, alter: Callable[[dict[str, Any]], dict[str, Any]], why: str) -> None:
        """Also if its digest was made again."""
        now = plan_migration(BEFORE)
        with pytest.raises(ValueError, match=why):
            describe_drift(seal(alter(deepcopy(now))), now)

    @pytest.mark.parametrize("name", sorted(plan_migration(BEFORE).keys() - {"kind", "version", "of", "cluster_id"}))
    def test_an_edit_of_any_part_is_refused(self, name: str) -> None:
        now = plan_migration(BEFORE)
        with pytest.raises(ValueError, match=r"altered|no whole plan"):
            describe_drift(now | {name: "edited"}, now)


def test_lines_that_all_files_of_a_stage_get_are_named_once() -> None:
    """What only some get stays with those; a node that is done gets none."""
    tasks = [
        {**task, "is_done": False}
        for name, task in tasks_of(plan_migration(facts_of(healthy()))).items()
        if name.startswith("first_roll.broker")
    ]
    common = list_common_lines(tasks)
    assert common == [line for line in list_lines(tasks[0]) if all(line in list_lines(task) for task in tasks)]
    assert common
    other = {**tasks[0], "file": [{"key": "own", "before": None, "after": "1"}]}
    assert list_common_lines([*tasks, other]) == []
    assert list_common_lines([*tasks, {**other, "is_done": True}]) == common
    assert list_common_lines(tasks[:1]) == []
