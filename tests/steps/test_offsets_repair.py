"""The repair of `__consumer_offsets` on the simulated cluster: whole, killed before every side effect, refused, and waiting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import MappingProxyType

import pytest

from airflow_provider_kmigrate.clients.wire import TopicLocations
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.exceptions import Refused, TimedOut
from airflow_provider_kmigrate.steps.offsets_repair import RepairOffsets
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.expansion_runs import stored
from tests.steps.repair_runs import NEW, OLD, WHERE, broken, check_repaired, moving
from tests.steps.sim_nodes import Killed


def repair(context: StepContext, decisions: Mapping[str, Mapping[str, int | None]] = MappingProxyType({})) -> object:
    return run_step(RepairOffsets(decisions), context)


def test_each_commit_ends_where_it_belongs_with_its_epoch_and_metadata(tmp_path: Path) -> None:
    cluster, right = broken()
    context = cluster.context(tmp_path)
    done = repair(context)
    assert isinstance(done, Done)
    assert f"{len(moving(right))} copies were removed. Restart every broker once" in done.text
    check_repaired(cluster, right)
    (plan,) = context.backup.folder.glob("offsets-repair-*.json")
    assert json.loads(plan.read_text())["count"] == NEW
    again = repair(context)
    assert isinstance(again, Done)
    assert "Restart" not in again.text


def test_killed_before_any_side_effect_it_does_what_is_left(tmp_path: Path) -> None:
    rehearsal, _ = broken()
    repair(rehearsal.context(tmp_path / "0"))
    assert rehearsal.mortal.count > 3
    for at in range(1, rehearsal.mortal.count + 1):
        cluster, right = broken()
        context, cluster.mortal.at = cluster.context(tmp_path / str(at)), at
        with pytest.raises(Killed):
            repair(context)
        repair(context)
        check_repaired(cluster, right)


def test_a_doubt_is_refused_with_both_values_until_an_operator_decides(tmp_path: Path) -> None:
    cluster, right = broken()
    context, group = cluster.context(tmp_path), moving(right)[0]
    cluster.log.read()
    before = cluster.offsets[hash_group(group) % OLD][group][WHERE]
    cluster.offsets[hash_group(group) % NEW][group] = {WHERE: FetchedOffset(0)}
    unchanged = stored(cluster)
    with pytest.raises(Refused) as refused:
        repair(context)
    assert [reason.code for reason in refused.value.reasons] == ["K90"]
    assert f"offset {before.offset}" in str(refused.value)
    assert "offset 0" in str(refused.value)
    assert stored(cluster) == unchanged
    right[group] = before
    repair(context, {group: {"t-0": before.offset}})
    check_repaired(cluster, right)


def test_a_group_with_members_is_waited_for_and_what_it_commits_meanwhile_counts(tmp_path: Path) -> None:
    cluster, right = broken()
    context, group = cluster.context(tmp_path), moving(right)[1]
    cluster.members[group] = 2
    unchanged, impatient = stored(cluster), RepairOffsets({})
    impatient.patience = 60.0
    with pytest.raises(TimedOut, match=rf"\[K79\] 1 group that is repaired has members: {group} \(2\)"):
        run_step(impatient, context)
    assert stored(cluster) == unchanged
    step = RepairOffsets({})
    step.begin(context)
    view = context.observer.observe(step.fields, (), (group,))
    step.decide(view, view)
    cluster.members.clear()
    right[group] = FetchedOffset(777)
    cluster.offsets.setdefault(hash_group(group) % NEW, {})[group] = {WHERE: right[group]}
    run_step(step, context)
    check_repaired(cluster, right)


def test_a_commit_for_a_topic_that_is_gone_is_removed_and_stops_nothing(tmp_path: Path) -> None:
    """Brokers refuse to import it; they removed it from the partition in which they expected it when the topic was deleted."""
    cluster, right = broken()
    group = moving(right)[0]
    cluster.offsets[hash_group(group) % OLD][group][TopicPartition("gone", 0)] = FetchedOffset(9)
    repair(cluster.context(tmp_path))
    check_repaired(cluster, right)


def test_a_topic_that_one_broker_knows_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, right = broken()
    asked = count()
    monkeypatch.setattr(cluster, "locations", lambda _: TopicLocations({}, {}, frozenset({"t"} if next(asked) % 3 else ())))
    repair(cluster.context(tmp_path))
    check_repaired(cluster, right)


def test_brokers_that_disagree_are_refused(tmp_path: Path) -> None:
    cluster, _ = broken()
    context = cluster.context(tmp_path)
    cluster.counts[1], unchanged = OLD, stored(cluster)
    with pytest.raises(Refused, match="K01"):
        repair(context)
    assert stored(cluster) == unchanged


def test_a_commit_between_the_plan_and_the_act_is_planned_again(tmp_path: Path) -> None:
    cluster, right = broken()
    context, group = cluster.context(tmp_path), moving(right)[1]
    observe, seen = context.observer.observe, []

    def committed_after_the_second_observation(*given: object) -> object:
        view = observe(*given)  # type: ignore[arg-type]
        seen.append(view)
        if len(seen) == 2:
            right[group] = FetchedOffset(888)
            cluster.offsets.setdefault(hash_group(group) % NEW, {})[group] = {WHERE: right[group]}
        return view

    context.observer.observe = committed_after_the_second_observation  # type: ignore[method-assign,assignment]
    repair(context)
    check_repaired(cluster, right)
