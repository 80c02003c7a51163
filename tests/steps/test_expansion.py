"""An expansion of `__consumer_offsets` on the simulated cluster: whole, killed before every observation and side effect, undone, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, hash_group
from airflow_provider_kmigrate.core.migration.group_progress import GroupsKept
from airflow_provider_kmigrate.core.migration.plan import EXPANSION
from airflow_provider_kmigrate.core.offsets_topic.expansion import parse_export
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, TimedOut
from airflow_provider_kmigrate.steps.catalog import build, run_plan
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.expansion_runs import TO_20, check_expanded, meanwhile, moving, stored, up_to
from tests.steps.phases import all_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimGroupsAt
from tests.steps.sim_nodes import Killed, Mortal, parse


def expand(context: StepContext, **arguments: object) -> object:
    return run_plan(context, EXPANSION, TO_20 | arguments)


def step(cluster: SimCluster, folder: Path, kind: str, **arguments: object) -> Done | Wait:
    """One step of the plan, in a new run."""
    return run_step(build(cluster.spec, kind, TO_20 | arguments), cluster.context(folder))


def codes(refused: pytest.ExceptionInfo[Refused]) -> set[str]:
    return {reason.code for reason in refused.value.reasons}


@pytest.fixture
def cluster() -> SimCluster:
    """Twelve groups, in ten partitions of the topic."""
    return SimCluster(offsets_partitions=10)


def test_moved_groups_end_with_exactly_their_offsets_and_the_others_are_not_touched(cluster: SimCluster, tmp_path: Path) -> None:
    before = stored(cluster)
    assert expand(cluster.context(tmp_path)) == Done("0 groups that had members before consume again.")
    check_expanded(cluster, before, 20)
    assert {node.stops for (role, _), node in cluster.nodes.items() if role is NodeRole.BROKER} == {1}


def test_moved_groups_end_with_exactly_their_offsets_in_kraft_mode(cluster: SimCluster, tmp_path: Path) -> None:
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


def stops(cluster: SimCluster) -> int:
    return sum(node.stops for node in cluster.nodes.values())


def test_groups_that_move_are_waited_for_and_the_others_stay_alive_all_the_time(cluster: SimCluster, tmp_path: Path) -> None:
    staying = sorted({f"team-{n}" for n in range(12)} - set(moving()))
    cluster.members = dict.fromkeys([*staying, *moving()], 2)
    before, began, at = stored(cluster), cluster.clock.time, []

    def stop() -> None:
        at.append((stops(cluster), stored(cluster) == before, cluster.offsets_partitions))
        cluster.members = dict.fromkeys(staying, 2)

    def start() -> None:
        check_expanded(cluster, before, 20)
        assert cluster.members == dict.fromkeys(staying, 2)
        cluster.members |= dict.fromkeys(moving(), 2)

    meanwhile(cluster, 300.0, stop)
    meanwhile(cluster, 900.0, start)
    assert moving()
    assert staying
    assert expand(cluster.context(tmp_path)) == Done(f"{len(moving())} groups that had members before consume again.")
    assert at == [(0, True, 10)], "nothing was changed while they were alive"
    assert cluster.clock.time - began >= 900.0


def test_a_sleeping_expansion_by_another_factor_is_completed_whole(cluster: SimCluster, tmp_path: Path) -> None:
    """KIP-895's own scenario: the topic got 15 partitions by hand, and no broker has restarted since."""
    before = stored(cluster)
    cluster.offsets_partitions = 15
    run_plan(cluster.context(tmp_path), EXPANSION, {"partitions": 15})
    check_expanded(cluster, before, 15)


def test_a_sleeping_expansion_may_be_expanded_to_a_multiple_so_that_fewer_groups_move(
    cluster: SimCluster, tmp_path: Path
) -> None:
    before = stored(cluster)
    cluster.offsets_partitions = 15
    text = getattr(step(cluster, tmp_path, "expansion plan"), "text", "")
    assert f"**{len(moving())} groups move" in text
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


def test_what_happens_to_a_sleeping_expansion_without_us(cluster: SimCluster, tmp_path: Path) -> None:
    """The simulation is one in which groups lose: otherwise the tests above would show nothing."""
    cluster.offsets_partitions = 15
    for node in cluster.spec.brokers:
        cluster.stop(node)
        cluster.start(node)
    assert cluster.disasters
    lost = [group for group in cluster._groups() if not cluster._seen(group).committed]
    assert lost


@pytest.mark.parametrize(
    ("arguments", "change", "code", "named"),
    [
        ({"partitions": 15}, lambda c: None, "K83", "15 is no multiple of 10.*20, 30, 40"),
        ({"partitions": 10}, lambda c: None, "K83", "has 10 partitions, and cannot get 10"),
        ({"partitions": 8}, lambda c: None, "K83", "cannot get 8"),
        ({"partitions": 17}, lambda c: setattr(c, "offsets_partitions", 15), "K83", "15 is allowed, too"),
        (TO_20, lambda c: c.counts.update({0: 20}), "K01", "broker 0 with 20; broker 1 with 10"),
        (
            TO_20,
            lambda c: c.kept_out.add(2) or setattr(c, "out_of_isr", True),
            "S02",
            "10 partitions of __consumer_offsets are under",
        ),
        (TO_20, lambda c: c.stop(c.spec.brokers[1]), "R01", "Brokers that do not answer: 1"),
        (TO_20, lambda c: other_file(c, 1, "7"), "B18", "broker 0 has 50, broker 1 has 7"),
        (TO_20, lambda c: c.in_transaction.update(moving()), "K81", "Open transactions hold back commits"),
        (TO_20, lambda c: (setattr(c, "offsets_partitions", 0), c.offsets.clear()), "K83", "does not exist"),
        (TO_20, lambda c: setattr(c, "moving", ("t-0",)), "S04", "1 partition is being reassigned"),
        (TO_20, lambda c: c.unread_coordinators.add(2), "K02", "brokers 2"),
        ({"partitions": "many"}, lambda c: None, "F09", "partitions is 'many'"),
        ({}, lambda c: None, "F09", "partitions is None"),
        ({**TO_20, "undo": True}, lambda c: None, "K83", "No expansion to 20 partitions has begun"),
    ],
)
def test_the_plan_refuses_with_names_and_changes_nothing(
    tmp_path: Path, arguments: dict[str, object], change: Callable[[SimCluster], object], code: str, named: str
) -> None:
    cluster = SimCluster(offsets_partitions=10)
    change(cluster)
    before, count = stored(cluster), stops(cluster)
    with pytest.raises(Refused, match=named) as refused:
        run_plan(cluster.context(tmp_path), EXPANSION, arguments)
    assert code in codes(refused)
    assert (stored(cluster), stops(cluster), cluster.expansion) == (before, count, None)


def other_file(cluster: SimCluster, broker: int, count: str) -> None:
    node = cluster.nodes[NodeRole.BROKER, broker]
    node.text += f"{OFFSETS.setting}={count}\n"


def test_a_topic_that_does_not_exist_is_not_made_by_looking(tmp_path: Path) -> None:
    cluster = SimCluster()
    with pytest.raises(Refused, match="K83"):
        expand(cluster.context(tmp_path))
    assert cluster.offsets_partitions == 0


def altered(folder: Path, which: str) -> Path:
    (path,) = (path for path in folder.rglob("offsets-topic-20.json") if (path.parent.name == "copy") is (which == "copy"))
    path.write_bytes(path.read_bytes().replace(b"111", b"112").replace(b"of ", b"fo "))
    return path


@pytest.mark.parametrize("which", ["copy", "first"])
@pytest.mark.parametrize("kind", ["delete groups", "import offsets"])
def test_an_altered_export_is_refused_and_the_intact_copy_is_the_way_on(
    cluster: SimCluster, tmp_path: Path, which: str, kind: str
) -> None:
    before = stored(cluster)
    up_to(cluster.context(tmp_path), kind)
    path, there = altered(tmp_path, which), stored(cluster)
    with pytest.raises(Refused, match=f"The export {path} is missing or was altered. Intact: ") as refused:
        step(cluster, tmp_path, kind)
    assert codes(refused) == {"O10"}
    assert stored(cluster) == there, "nothing was deleted or imported"
    (intact,) = set(tmp_path.rglob("offsets-topic-20.json")) - {path}
    path.write_bytes(intact.read_bytes())
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


def test_a_lost_export_is_refused_too(cluster: SimCluster, tmp_path: Path) -> None:
    up_to(cluster.context(tmp_path), "import offsets")
    for path in tmp_path.rglob("offsets-topic-20.json"):
        path.unlink()
    with pytest.raises(Refused, match="No copy is intact"):
        step(cluster, tmp_path, "import offsets")


def commit(cluster: SimCluster, group: str, offset: int) -> None:
    where = hash_group(group) % cluster.counts[0]
    cluster.offsets.setdefault(where, {})[group] = {TopicPartition("t", 0): FetchedOffset(offset)}


def test_a_commit_behind_the_export_is_exported_again_as_long_as_nothing_was_deleted(cluster: SimCluster, tmp_path: Path) -> None:
    up_to(cluster.context(tmp_path), "delete groups")
    commit(cluster, moving()[0], 4711)
    before = stored(cluster)
    with pytest.raises(Refused, match=f"1 group committed since the export: {moving()[0]}") as refused:
        step(cluster, tmp_path, "delete groups")
    assert codes(refused) == {"K82"}
    assert stored(cluster) == before
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


@pytest.mark.parametrize("kind", ["expand", "restart broker"])
def test_a_group_that_was_deleted_and_commits_again_stops_everything_before_a_restart(
    cluster: SimCluster, tmp_path: Path, kind: str
) -> None:
    up_to(cluster.context(tmp_path), kind)
    commit(cluster, moving()[0], 1)
    for again in (kind, "export offsets"):
        with pytest.raises(Refused, match=moving()[0]) as refused:
            step(cluster, tmp_path, again, node=0)
        assert codes(refused) == {"K82"}
    assert stops(cluster) == 0


def test_a_group_that_appears_after_the_export_is_exported_by_the_cleared_tasks(cluster: SimCluster, tmp_path: Path) -> None:
    before = stored(cluster)
    up_to(cluster.context(tmp_path), "restart broker")
    new = next(name for name in (f"new-{n}" for n in range(50)) if hash_group(name) % 10 != hash_group(name) % 20)
    commit(cluster, new, 5)
    with pytest.raises(Refused, match=f"1 group that moves appeared since the export: {new}"):
        step(cluster, tmp_path, "restart broker", node=0)
    before[new] = [(hash_group(new) % 10, dict(cluster.offsets[hash_group(new) % 10][new]))]
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


def test_a_group_that_starts_before_its_import_is_not_overwritten(cluster: SimCluster, tmp_path: Path) -> None:
    up_to(cluster.context(tmp_path), "import offsets")
    early = moving()[0]
    commit(cluster, early, 3)
    with pytest.raises(Refused, match=f"1 group committed before their offsets were imported: {early}") as refused:
        step(cluster, tmp_path, "import offsets")
    assert codes(refused) == {"K82"}
    assert stored(cluster)[early] == [(hash_group(early) % 20, {TopicPartition("t", 0): FetchedOffset(3)})]
    assert len(stored(cluster)) == 12, "all others have theirs"


@pytest.mark.parametrize("kind", ["export offsets", "delete groups", "expand", "restart broker"])
def test_an_expansion_can_be_undone_until_the_first_restart(cluster: SimCluster, tmp_path: Path, kind: str) -> None:
    before = stored(cluster)
    up_to(cluster.context(tmp_path), kind)
    plan = getattr(step(cluster, tmp_path, "expansion plan", undo=True), "text", "")
    assert ("has 20 partitions, and Kafka cannot remove any" in plan) is (kind == "restart broker")
    expand(cluster.context(tmp_path), undo=True)
    assert (stored(cluster), stops(cluster), cluster.expansion) == (before, 0, None)
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


def test_afterwards_there_is_only_the_way_forward(cluster: SimCluster, tmp_path: Path) -> None:
    before = stored(cluster)
    up_to(cluster.context(tmp_path), "restart broker")
    step(cluster, tmp_path, "restart broker", node=1)
    for kind in ("expansion plan", "import offsets"):
        with pytest.raises(Refused, match="Brokers 1 use the new count: this can only be completed now") as refused:
            step(cluster, tmp_path, kind, undo=True)
        assert codes(refused) == {"K83"}
    with pytest.raises(Refused, match="An expansion of __consumer_offsets to 20 partitions is under way, not to 40"):
        run_plan(cluster.context(tmp_path), EXPANSION, {"partitions": 40})
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)
    run_plan(cluster.context(tmp_path), EXPANSION, {"partitions": 40})
    check_expanded(cluster, before, 40)


def test_a_broker_whose_file_was_edited_is_not_restarted(cluster: SimCluster, tmp_path: Path) -> None:
    up_to(cluster.context(tmp_path), "restart broker")
    cluster.nodes[NodeRole.BROKER, 0].text += "num.io.threads=3\n"
    with pytest.raises(Refused, match=r"O03.*num\.io\.threads"):
        step(cluster, tmp_path, "restart broker", node=0)
    assert stops(cluster) == 0


def test_a_broker_that_has_crashed_into_the_new_count_gets_its_file_and_no_further_restart(
    cluster: SimCluster, tmp_path: Path
) -> None:
    before = stored(cluster)
    up_to(cluster.context(tmp_path), "restart broker")
    cluster.stop(cluster.spec.brokers[1])
    cluster.start(cluster.spec.brokers[1])
    run_plan(cluster.context(tmp_path), EXPANSION, TO_20)
    node = cluster.nodes[NodeRole.BROKER, 1]
    assert (node.stops, parse(node.text)[OFFSETS.setting]) == (1, "20")
    node.running = node.text
    check_expanded(cluster, before, 20)


def test_offsets_that_brokers_leave_out_of_their_answers_are_not_deleted(cluster: SimCluster, tmp_path: Path) -> None:
    """Brokers report no offsets of topics that our user may not describe, and no error."""
    group, hidden = moving()[0], TopicPartition("hidden", 0)
    cluster.hidden_topics.add("hidden")
    cluster.offsets[hash_group(group) % 10][group][hidden] = FetchedOffset(7)
    before = stored(cluster)
    with pytest.raises(Refused, match=rf"{group} hidden-0 must be nothing, and offset 7 \(record") as refused:
        expand(cluster.context(tmp_path))
    assert codes(refused) == {"K85"}
    assert (stored(cluster), stops(cluster)) == (before, 0)


def test_a_group_that_no_broker_lists_is_found_in_the_log_before_anything_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, group = SimCluster(offsets_partitions=10), moving()[0]
    before, listed, hosted = stored(cluster), SimCluster._groups, SimCluster._hosted
    monkeypatch.setattr(SimCluster, "_groups", lambda self: tuple(name for name in listed(self) if name != group))
    monkeypatch.setattr(
        SimCluster,
        "_hosted",
        lambda self, _: {b: {g: one for g, one in those.items() if g != group} for b, those in hosted(self, ()).items()},
    )
    with pytest.raises(Refused, match=f"{group} t-0 must be nothing"):
        expand(cluster.context(tmp_path))
    assert (stored(cluster), stops(cluster)) == (before, 0)


def test_an_old_copy_in_another_partition_is_refused_before_the_group_is_deleted(tmp_path: Path) -> None:
    cluster, group = SimCluster(offsets_partitions=10), moving()[0]
    stray = (hash_group(group) % 10 + 1) % 10
    cluster.offsets.setdefault(stray, {})[group] = {TopicPartition("t", 0): FetchedOffset(1)}
    before = stored(cluster)
    with pytest.raises(Refused, match=f"{group} t-0 must be offset") as refused:
        expand(cluster.context(tmp_path))
    assert codes(refused) == {"K85"}
    assert stored(cluster) == before


def test_the_topic_is_not_expanded_before_the_log_shows_that_old_commits_are_gone(
    cluster: SimCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker deletes a group without waiting for its followers: a new leader would still have its commits."""
    before = stored(cluster)
    up_to(cluster.context(tmp_path), "delete groups")
    unreplicated = cluster.log.read()
    with monkeypatch.context() as patch:
        patch.setattr(type(cluster.log), "read", lambda *_, **__: unreplicated)
        with pytest.raises(Refused, match="t-0 must be nothing, and offset") as refused:
            step(cluster, tmp_path, "delete groups")
    assert codes(refused) == {"K85"}
    for kind, code in (("expand", "K83"), ("restart broker", "K83")):
        with pytest.raises(Refused, match=code):
            step(cluster, tmp_path, kind, node=0)
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


def test_tombstones_that_reach_the_followers_a_moment_later_are_waited_for(
    cluster: SimCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored(cluster)
    up_to(cluster.context(tmp_path), "delete groups")
    late, read = [cluster.log.read()] * 3, type(cluster.log).read
    monkeypatch.setattr(type(cluster.log), "read", lambda *given, **how: late.pop() if late else read(*given, **how))
    expand(cluster.context(tmp_path))
    check_expanded(cluster, before, 20)


@pytest.mark.parametrize("undo", [False, True])
def test_an_expansion_does_not_end_while_the_log_holds_another_copy(tmp_path: Path, undo: bool) -> None:
    """Its partition has another leader now, so no broker shows it."""
    cluster, count = SimCluster(offsets_partitions=10), 10 if undo else 20
    up_to(cluster.context(tmp_path), "expand" if undo else "verify offsets")
    if undo:
        step(cluster, tmp_path, "import offsets", undo=True)
    group = moving()[0]
    hidden = next(p for p in range(10) if cluster._leader(p) != cluster._leader(hash_group(group) % count))
    cluster.offsets.setdefault(hidden, {})[group] = {TopicPartition("t", 0): FetchedOffset(1)}
    for _ in range(2):
        with pytest.raises(Refused, match=rf"{group} t-0 must be offset \d+, and .* is stored") as refused:
            step(cluster, tmp_path, "verify offsets", undo=undo)
        assert codes(refused) == {"K85"}
    assert b"imported" not in (cluster.expansion or b"")
    del cluster.offsets[hidden][group]
    step(cluster, tmp_path, "verify offsets", undo=undo)


def test_a_group_that_appeared_while_brokers_disagreed_is_named_at_the_end(tmp_path: Path) -> None:
    cluster, said = SimCluster(offsets_partitions=10), list[str]()
    up_to(cluster.context(tmp_path), "verify offsets")
    new = next(name for name in (f"new-{n}" for n in range(50)) if hash_group(name) % 10 != hash_group(name) % 20)
    cluster.offsets[hash_group(new) % 10][new] = {TopicPartition("t", 0): FetchedOffset(5)}
    run_step(build(cluster.spec, "verify offsets", TO_20), replace(cluster.context(tmp_path), say=said.append))
    assert any(
        text.startswith(f"1 group that appeared during the restarts has commits that no broker looks for: {new}.")
        for text in said
    )


def test_offsets_of_a_topic_that_is_gone_do_not_stop_a_deletion(tmp_path: Path) -> None:
    """Brokers refuse commits for it, and keep the old ones until they expire."""
    cluster, group = SimCluster(offsets_partitions=10), moving()[0]
    cluster.offsets[hash_group(group) % 10][group][TopicPartition("gone", 0)] = FetchedOffset(9)
    expand(cluster.context(tmp_path))
    ((_, offsets),) = stored(cluster)[group]
    assert set(offsets) == {TopicPartition("t", 0)}


def test_the_export_has_the_time_of_each_commit_also_after_a_killed_deletion_committed_it_again(
    cluster: SimCluster, tmp_path: Path
) -> None:
    cluster.log.read()
    up_to(cluster.context(tmp_path), "delete groups")
    path = next(iter(tmp_path.rglob("offsets-topic-20.json")))
    first = parse_export(json.loads(path.read_bytes().partition(b"\n")[2]))
    assert first.times.keys() == {GroupPartition(group, "t", 0) for group in moving()}
    commit(cluster, moving()[0], 4711)
    step(cluster, tmp_path, "export offsets")
    again = parse_export(json.loads(path.read_bytes().partition(b"\n")[2]))
    changed = {key for key in first.times if first.times[key] != again.times[key]}
    assert changed == {GroupPartition(moving()[0], "t", 0)}


def test_a_broker_that_something_else_restarts_before_the_offsets_are_saved_is_refused_and_no_other_restarts(
    cluster: SimCluster,
    tmp_path: Path,
) -> None:
    """The expansion was made by hand and no broker had noticed it; one that uses it now would leave the groups without offsets."""
    cluster.offsets_partitions = 15
    cluster.members = dict.fromkeys(moving(15), 1)
    step = build(cluster.spec, "groups stopped", {"partitions": 15})
    meanwhile(cluster, 60.0, lambda: restart_by_hand(cluster, 1))
    before = stored(cluster)
    for kind in ("", "export offsets", "delete groups"):
        with pytest.raises(Refused, match="Brokers 1 have restarted, and use another count") as refused:
            run_step(build(cluster.spec, kind, {"partitions": 15}) if kind else step, cluster.context(tmp_path))
        assert codes(refused) == {"K01"}
    assert (stored(cluster), stops(cluster)) == (before, 1)
    for broker in (0, 2):
        restart_by_hand(cluster, broker)
    cluster.members.clear()
    run_plan(cluster.context(tmp_path), EXPANSION[2:-1], {"partitions": 15})
    assert b"imported" in (cluster.expansion or b""), "it is over; what moved is left to the repair"
    assert stops(cluster) == 3


def restart_by_hand(cluster: SimCluster, broker: int) -> None:
    cluster.stop(cluster.spec.brokers[broker])
    cluster.start(cluster.spec.brokers[broker])


def test_a_missing_right_to_commit_is_found_before_any_group_is_deleted(
    cluster: SimCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up_to(cluster.context(tmp_path), "delete groups")
    before = stored(cluster)

    def refused(*_: object) -> None:
        raise AuthenticationFailed("OffsetCommit of team-1 for t-0: TOPIC_AUTHORIZATION_FAILED")

    monkeypatch.setattr(SimGroupsAt, "commit", refused)
    with pytest.raises(AuthenticationFailed):
        step(cluster, tmp_path, "delete groups")
    assert stored(cluster) == before


def consumer(cluster: SimCluster, group: str, continues: list[float]) -> Callable[[float], GroupSweep]:
    """The sweeps over a group with steady traffic, which hangs from the first restart of a broker until `continues`."""
    hung: list[float] = []

    def sweep(now: float) -> GroupSweep:
        if not hung and stops(cluster):
            hung.append(now)
        committed = int(100 * (now if not hung or now >= continues[0] else hung[0]))
        return GroupSweep({group: GroupPosition({TopicPartition("t", 0): Lag(committed, int(100 * now) + 50)})})

    return sweep


def named(*, moves: bool) -> str:
    return next(name for name in (f"app-{n}" for n in range(50)) if (hash_group(name) % 10 != hash_group(name) % 20) is moves)


def test_a_group_that_stays_and_hangs_since_a_restart_holds_the_next_one(cluster: SimCluster, tmp_path: Path) -> None:
    up_to(cluster.context(tmp_path), "restart broker")
    group, continues = named(moves=False), [float("inf")]
    cluster.consumers = consumer(cluster, group, continues)
    step(cluster, tmp_path, "restart broker", node=1)
    with pytest.raises(TimedOut, match=f"G38.*{group}"):
        step(cluster, tmp_path, "restart broker", node=2)
    assert stops(cluster) == 1
    continues[0] = cluster.clock.time
    expand(cluster.context(tmp_path))
    assert stops(cluster) == 3


def test_the_end_of_the_restarts_waits_for_a_group_that_stays(cluster: SimCluster, tmp_path: Path) -> None:
    up_to(cluster.context(tmp_path), "one coordinator")
    cluster.kept.save(GroupsKept({named(moves=False): frozenset()}))
    with pytest.raises(TimedOut, match=named(moves=False)):
        step(cluster, tmp_path, "one coordinator")


def test_no_restart_of_an_expansion_waits_for_a_group_that_moves(cluster: SimCluster, tmp_path: Path) -> None:
    """It was stopped on purpose, or appears while brokers disagree about it: only the other restarts help it."""
    up_to(cluster.context(tmp_path), "restart broker")
    group = named(moves=True)
    cluster.kept.save(GroupsKept({group: frozenset()}))
    cluster.consumers = consumer(cluster, group, [float("inf")])
    expand(cluster.context(tmp_path))
    assert stops(cluster) == 3
