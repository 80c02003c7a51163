"""An expansion of `__consumer_offsets` on the simulated cluster: whole, killed before every look and side effect, undone, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster import NodeRole
from airflow_provider_kmigrate.core.coordinator import OFFSETS, magnitude
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import CommittedOffset
from airflow_provider_kmigrate.core.plan import EXPANSION, find
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.steps.whole_plan import run_plan
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Killed, Mortal, parse
from tests.steps.test_rollback import all_kraft

TO_20 = {"partitions": 20}
UNTIL = [step.kind for step in EXPANSION]


def stored(cluster: SimCluster) -> dict[str, list[tuple[int, dict[TopicPartition, CommittedOffset]]]]:
    """Group -> each partition that holds offsets of it, with them: the independent reader."""
    found: dict[str, list[tuple[int, dict[TopicPartition, CommittedOffset]]]] = {}
    for partition, groups in sorted(cluster.offsets.items()):
        for group, offsets in groups.items():
            found.setdefault(group, []).append((partition, offsets))
    return found


def check_expanded(
    cluster: SimCluster, before: dict[str, list[tuple[int, dict[TopicPartition, CommittedOffset]]]], count: int
) -> None:
    assert cluster.disasters == []
    assert set(cluster.counts.values()) == {count} == {cluster.offsets_partitions}
    assert stored(cluster) == {group: [(magnitude(group) % count, offsets)] for group, [(_, offsets)] in before.items()}
    for (role, _), node in cluster.nodes.items():
        if role is NodeRole.BROKER:
            assert parse(node.text)[OFFSETS.setting] == str(count)
            assert node.running == node.text


def expand(context: StepContext, **arguments: object) -> object:
    return run_plan(context, EXPANSION, TO_20 | arguments)


def up_to(context: StepContext, kind: str, **arguments: object) -> None:
    """The plan up to a step, without it."""
    run_plan(context, EXPANSION[: EXPANSION.index(find(EXPANSION, kind))], TO_20 | arguments)


def codes(refused: pytest.ExceptionInfo[Refused]) -> set[str]:
    return {reason.code for reason in refused.value.reasons}


def test_moved_groups_end_with_exactly_their_offsets_and_the_others_are_not_touched(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    before = stored(cluster)
    assert expand(cluster.context(tmp_path)) == Done("0 groups that had members before consume again.")
    check_expanded(cluster, before, 20)
    assert {node.stops for (role, _), node in cluster.nodes.items() if role is NodeRole.BROKER} == {1}


def test_so_they_do_in_kraft_mode(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    all_kraft(cluster, cluster.context(tmp_path))
    before = stored(cluster)
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


@pytest.mark.slow
@pytest.mark.parametrize("kraft", [False, True])
def test_a_tool_killed_anywhere_resumes_to_the_same_end_without_another_restart(tmp_path: Path, kraft: bool) -> None:
    def begun(folder: Path) -> SimCluster:
        cluster = SimCluster(offsets_partitions=10)
        if kraft:
            all_kraft(cluster, cluster.context(folder))
        cluster.mortal = Mortal()
        return cluster

    rehearsal = begun(tmp_path / "0")
    expand(rehearsal.context(tmp_path / "0"))
    for at in range(1, rehearsal.mortal.count + 1):
        folder = tmp_path / str(at)
        cluster = begun(folder)
        before, stops = stored(cluster), {key: node.stops for key, node in cluster.nodes.items()}
        cluster.mortal.at = at
        with pytest.raises(Killed):
            expand(cluster.context(folder))
        expand(cluster.context(folder)) if cluster.expansion is None or b"imported" not in cluster.expansion else None
        check_expanded(cluster, before, 20)
        restarted = {node.stops - stops[key] for key, node in cluster.nodes.items() if key[0] is NodeRole.BROKER}
        assert restarted == {1}, at
