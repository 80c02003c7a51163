"""A group's cutover and its rollback, on a simulated group: whole, killed before every side effect, and with everything that goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ZkController
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay, InstanceSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan
from airflow_provider_kmigrate.core.member.cutover_note import CutoverNote
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Flaw, Registration, Unreadable
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Refused, TimedOut, Unreachable
from airflow_provider_kmigrate.steps.cutover import CutOver, make_group_rollback
from airflow_provider_kmigrate.steps.groups import CleanUp, WatchGroup
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.sim_group import MIGRATING, OLD, PLAIN, ROOT, SimGroup
from tests.steps.sim_hands import SimFence
from tests.steps.sim_nodes import Killed, Mortal


def make_group(count: int = 2, **fields: object) -> SimGroup:
    group = SimGroup(count, **fields)  # type: ignore[arg-type]
    group.spec = replace(group.spec, way=GroupWay.CUTOVER)
    return group


def cut_over(group: SimGroup) -> str:
    return getattr(run_step(CutOver(group.spec), group.context()), "text", "")


def roll_back(group: SimGroup) -> None:
    run_step(make_group_rollback(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())


def refusal_codes(group: SimGroup) -> list[str]:
    with pytest.raises(Refused) as refused:
        cut_over(group)
    return [reason.code for reason in refused.value.reasons]


def check_old(group: SimGroup) -> None:
    """The old version runs, and no trace of the cutover is left beside the hold."""
    group._tick(1.0)
    assert group.kinds() == [OLD] * group.count
    assert f"{ROOT}/migration/cutover" not in group.znodes


def test_all_instances_stop_and_start_once_and_the_pause_is_told() -> None:
    group = make_group(4)
    said = cut_over(group)
    assert group.kinds() == [PLAIN] * 4
    assert [one.starts for one in group.instances.values()] == [1] * 4
    assert "was stopped for" in said
    pause = float(said.split("was stopped for ")[1].split(" s")[0])
    assert pause <= group.spec.quiet + 3.0 + 10.0, "the simulated start takes 3 s"


def test_it_observes_more_often_while_there_is_no_member_and_nothing_starts() -> None:
    group = make_group()
    step, seen, intervals = CutOver(group.spec), group.seen, set[tuple[int, bool, float]]()

    def note_interval() -> object:
        started = any(one.starts for one in group.instances.values())
        intervals.add((len(group.kinds()), started, step.interval))
        return seen()

    group.seen = note_interval  # type: ignore[assignment]
    run_step(step, group.context())
    assert (0, False, 0.1) in intervals
    assert (0, True, 0.5) in intervals, "a new version that starts needs the processor"
    assert {interval for kinds, _, interval in intervals if kinds} == {0.5}


class ByHand(SimGroup):
    """No command: a person reads the log, and does what it says some seconds later, if at all."""

    obeys = True

    def switch(self, group: object, *_: object) -> None:
        raise AssertionError(f"nothing but people may restart instances of {group}")

    def hear(self, text: str) -> None:
        if not text.startswith("NOW, BY HAND: ") or not self.obeys:
            return
        kind = OLD if "as the old" in text else PLAIN if "as the new" in text else None
        for one in self.instances.values():
            if one.name in text:
                one.kind, one.becomes, one.ready_at, one.starts = (
                    None,
                    kind,
                    self.clock.time + 9.0,
                    one.starts + (kind is not None),
                )

    def context(self) -> StepContext:
        return replace(super().context(), say=self.hear)


def make_by_hand() -> ByHand:
    group = ByHand(2)
    group.spec = replace(group.spec, way=GroupWay.CUTOVER, by_hand=True)
    return group


def test_people_stop_and_start_it_by_hand_and_back() -> None:
    group = make_by_hand()
    assert "was stopped for" in cut_over(group)
    assert group.kinds() == [PLAIN, PLAIN]
    roll_back(group)
    check_old(group)
    assert [one.starts for one in group.instances.values()] == [2, 2]


def test_people_who_stop_nothing_are_asked_for_the_old_version() -> None:
    group = make_by_hand()
    group.obeys = False
    assert refusal_codes(group) == ["K69", "K91"]
    check_old(group)


def test_people_who_start_nothing_are_asked_for_the_old_version() -> None:
    group = make_by_hand()
    hear = group.hear
    group.hear = lambda text: None if "as the new" in text else hear(text)  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "K93"]
    check_old(group)


def test_a_cutover_again_touches_nothing() -> None:
    group = make_group()
    cut_over(group)
    cut_over(group)
    assert [one.starts for one in group.instances.values()] == [1, 1]


def test_killed_before_every_observation_and_side_effect_it_ends_the_same() -> None:
    rehearsal = make_group()
    cut_over(rehearsal)
    assert rehearsal.mortal.count > 30
    for at in range(1, rehearsal.mortal.count + 1):
        group = make_group(mortal=Mortal(at))
        with pytest.raises(Killed):
            cut_over(group)
        cut_over(group)
        assert group.kinds() == [PLAIN, PLAIN], at
        assert sum(one.starts for one in group.instances.values()) <= 4


def test_rolled_back_from_wherever_it_was_killed() -> None:
    rehearsal = make_group()
    cut_over(rehearsal)
    for at in range(1, rehearsal.mortal.count + 1):
        group = make_group(mortal=Mortal(at))
        with pytest.raises(Killed):
            cut_over(group)
        roll_back(group)
        check_old(group)


def test_the_rollback_killed_before_every_side_effect() -> None:
    rehearsal = make_group()
    cut_over(rehearsal)
    begun = rehearsal.mortal.count
    roll_back(rehearsal)
    for at in range(begun + 1, rehearsal.mortal.count + 1):
        group = make_group(mortal=Mortal(at))
        cut_over(group)
        with pytest.raises(Killed):
            roll_back(group)
        roll_back(group)
        check_old(group)


def test_after_the_rollback_the_group_is_cut_over_again() -> None:
    group = make_group()
    cut_over(group)
    roll_back(group)
    cut_over(group)
    assert group.kinds() == [PLAIN, PLAIN]


def test_an_automatic_rollback_that_is_killed_anywhere_ends_with_the_old_version_and_the_same_reasons() -> None:
    rehearsal = make_group(ill=frozenset({PLAIN}))
    assert refusal_codes(rehearsal) == ["K69", "V30"]
    for at in range(1, rehearsal.mortal.count + 1, 3):
        group = make_group(ill=frozenset({PLAIN}), mortal=Mortal(at))
        step = CutOver(group.spec)
        with pytest.raises(Killed):
            run_step(step, group.context())
        with pytest.raises(Refused, match="K69"):
            run_step(CutOver(group.spec).resume(step.progress.for_retry()), group.context())
        check_old(group)


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"ill": frozenset({PLAIN})}, ["K69", "V30"]),
        ({"other_topic": True}, ["K69", "K93"]),
        ({"refusing": frozenset({"stopped"})}, ["K69", "K91"]),
        ({"refusing": frozenset({"kafka"})}, ["K69", "K93"]),
        ({"ignoring": frozenset({("app1", "stopped")})}, ["K69", "K91"]),
        ({"ignoring": frozenset({("app1", "kafka")})}, ["K69", "K93"]),
        ({"ignoring": frozenset({("app0", "kafka"), ("app1", "kafka")})}, ["K69", "K93"]),
        ({"coming_back": {"app1": 2.0}}, ["K69", "K91"]),
        ({"stray_commits": True}, ["K69", "K92"]),
    ],
)
def test_whatever_fails_the_old_version_runs_again(fields: dict[str, object], codes: list[str]) -> None:
    group = make_group(**fields)
    assert refusal_codes(group) == codes
    check_old(group)
    assert f"{ROOT}/migration/hold" in group.znodes


@pytest.mark.parametrize("kind", ["stopped", "kafka"])
def test_what_commands_say_at_length_keeps_no_group_from_its_old_version(kind: str) -> None:
    """Two hundred instances whose command says 2,000 bytes that are no text: more than a znode may have."""
    group = make_group(200, refusing=frozenset({kind}), stderr=": " + "\ufffd" * 2_000)
    assert refusal_codes(group) == ["K69", "K91" if kind == "stopped" else "K93"]
    check_old(group)
    assert len(group.znodes[f"{ROOT}/migration/hold"][0]) < 50_000


def test_an_old_instance_that_returns_beside_the_new_version_turns_the_cutover_back() -> None:
    group = make_group(ill=frozenset({PLAIN}))
    group.coming_back = {"app1": 9.0}  # after nobody was there for long enough
    group._check = lambda: None  # type: ignore[method-assign]  # that is what is to be seen
    start = group.switch

    def keep_old(spec: object, instance: object, kind: str, token: int) -> None:
        """Kubernetes starts the old version whatever is asked."""
        one = group.instances["app1"]
        if instance is spec.instances[1] and kind == "kafka":  # type: ignore[attr-defined]
            one.kind, one.becomes = OLD, None
            return
        start(spec, instance, kind, token)  # type: ignore[arg-type]

    group.switch = keep_old  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "K91"]
    check_old(group)


def test_nothing_is_stopped_while_a_side_is_unknown() -> None:
    group = make_group(blind=True)
    with pytest.raises(TimedOut, match="K30"):
        cut_over(group)
    assert group.kinds() == [OLD, OLD]


def test_a_coordinator_that_is_lost_after_the_stop_brings_the_old_version_back() -> None:
    """ZooKeeper alone has the offsets then, and is enough."""
    group = make_group()
    seen, stopped = group.seen, []

    def lose_kafka() -> object:
        """As `seen`, without Kafka once all are stopped."""
        found = seen()
        if not group.kinds() or stopped:
            stopped.append(True)
            return replace(found, kafka=None, committed=None, ends=None)
        return found

    group.seen = lose_kafka  # type: ignore[assignment]
    assert refusal_codes(group) == ["K69", "K30"]
    check_old(group)


@pytest.mark.parametrize("error", [Failed("OffsetCommit: UNKNOWN_TOPIC_OR_PARTITION"), Refused("GROUP_AUTHORIZATION_FAILED")])
def test_a_copy_that_kafka_refuses_brings_the_old_version_back(error: Exception) -> None:
    group = make_group()

    def refuse(*_: object) -> None:
        raise error

    group.commit_offsets = refuse  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "K93"]
    check_old(group)


def test_a_run_that_lost_the_cluster_in_the_middle_rolls_nothing_back() -> None:
    group = make_group()

    def refuse(*_: object) -> None:
        raise Fenced("a newer run holds the cluster")

    group.switch = refuse  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        cut_over(group)
    assert f"{ROOT}/migration/hold" not in group.znodes


def test_a_copy_that_had_no_answer_is_made_again() -> None:
    group, tries = make_group(), []
    commit = group.commit_offsets

    def answer_late(*given: object) -> None:
        commit(*given)  # type: ignore[arg-type]
        tries.append(1)
        if len(tries) == 1:
            raise TimedOut("no answer")

    group.commit_offsets = answer_late  # type: ignore[method-assign]
    cut_over(group)
    assert group.kinds() == [PLAIN, PLAIN]


def test_a_note_that_may_not_be_written_stops_nothing() -> None:
    group = make_group()

    def refuse(*_: object, **__: object) -> None:
        raise Refused("NoAuth")

    group.commit = refuse  # type: ignore[method-assign]
    with pytest.raises(Refused, match="NoAuth"):
        cut_over(group)
    assert group.kinds() == [OLD, OLD]


def test_a_version_that_started_before_offsets_were_copied_never_moves_zookeeper() -> None:
    group = make_group()
    seen, here = group.seen, group.instances["app0"]

    def start_early() -> object:
        """The new version of app0 joins as soon as all are stopped, and commits at the logs' ends."""
        if not group.kinds() and here.starts == 0:
            here.kind, here.starts = PLAIN, 1
            group.kafka |= {here.busy: 10_000, here.idle: 10_000}
        return seen()

    group.seen = start_early  # type: ignore[assignment]
    assert refusal_codes(group) == ["K69", "K93"]
    check_old(group)
    assert group._offset(here.idle) == 100


@pytest.mark.parametrize(
    "offset",
    [b"none", b"99999", b"", b"-1", b"-7", b"9223372036854775808", b"9" * 5000, b"1e2", b"0x64", b"100\n", b"\xff", b"\xc2\xb2"],
)
def test_offsets_that_no_consumer_can_start_from_stop_nothing(offset: bytes) -> None:
    """No number, below 0, beyond Java's long, beyond the log: what Java would not parse, or `auto.offset.reset` would replace."""
    group = make_group()
    group.znodes[f"{ROOT}/offsets/idle/1"] = (offset, 0, 1)
    assert refusal_codes(group) == ["K42"]
    assert not any(one.starts for one in group.instances.values())
    assert group.kinds() == [OLD, OLD]


def test_a_partition_without_an_offset_stops_nothing_unless_it_is_empty() -> None:
    group = make_group()
    del group.znodes[f"{ROOT}/offsets/idle/1"]
    assert refusal_codes(group) == ["K42"]
    assert group.kinds() == [OLD, OLD]
    empty = TopicPartition("idle", 1)
    group.ends[empty] = group.committed[empty] = 0
    cut_over(group)
    assert group.kafka[empty] == 0


def first_records_come(group: SimGroup, where: TopicPartition) -> None:
    """As soon as nobody runs; the new version processes them."""
    seen = group.seen

    def look() -> GroupSeen:
        if not group.kinds():
            group.ends[where] = 7
        if PLAIN in group.kinds() and where in group.kafka:
            group.kafka[where] = 7
        return seen()

    group.seen = look  # type: ignore[method-assign]


@pytest.mark.parametrize("new", [False, True], ids=["an empty partition", "a partition that is added"])
@pytest.mark.parametrize("refusing", [frozenset(), frozenset({"kafka"})], ids=["forward", "and back"])
def test_first_records_that_come_during_the_pause_are_skipped_by_neither_version(refusing: frozenset[str], new: bool) -> None:
    group, where = make_group(refusing=refusing), TopicPartition("idle", 2 if new else 1)
    if not new:
        del group.znodes[f"{ROOT}/offsets/idle/1"]
        group.ends[where] = group.committed[where] = 0
    written, commit = dict[TopicPartition, int](), group.commit_offsets

    def note_written(plan: CopyPlan, holding: SimFence) -> None:
        written.update({write.where: write.offset for write in plan.writes})
        commit(plan, holding)

    group.commit_offsets = note_written  # type: ignore[method-assign]
    first_records_come(group, where)
    if refusing:
        assert refusal_codes(group) == ["K69", "K93"]
        check_old(group)
        assert group._offset(where) == 0, "the old version begins at the first record, whatever its `auto.offset.reset` is"
    else:
        cut_over(group)
    assert written[where] == 0


def test_a_partition_whose_topic_was_deleted_stops_nothing() -> None:
    group = make_group()
    del group.ends[TopicPartition("idle", 1)]
    with pytest.raises(TimedOut, match="the ends of idle-1"):
        cut_over(group)
    assert group.kinds() == [OLD, OLD]


@pytest.mark.parametrize("end", [None, 0], ids=["deleted", "created again"])
def test_a_topic_that_is_deleted_or_created_again_after_the_stop_brings_the_old_version_back(end: int | None) -> None:
    """Its offset is then of a log that is gone, or ahead of the new one."""
    group = make_group()
    seen, where = group.seen, TopicPartition("idle", 1)

    def change() -> object:
        if not group.kinds():
            group.ends.pop(where, None)
            group.ends |= {} if end is None else {where: end}
        return seen()

    group.seen = change  # type: ignore[assignment]
    assert refusal_codes(group) == ["K69", "K42"]
    check_old(group)
    assert where not in group.kafka, "nothing was copied"


def test_an_application_that_is_registered_below_another_chroot_is_not_touched() -> None:
    """Below the cluster's own chroot there is no such group."""
    group = make_group()
    elsewhere = replace(group.seen(), zk=ZkGroup())
    group.seen = lambda: elsewhere  # type: ignore[method-assign]
    with pytest.raises(TimedOut, match="K55"):
        cut_over(group)
    assert group.kinds() == [OLD, OLD]
    assert not any(one.starts for one in group.instances.values())


def test_leftover_offsets_in_kafka_that_are_ahead_stop_nothing() -> None:
    group = make_group(kafka={TopicPartition("idle", 1): 101})
    assert refusal_codes(group) == ["K64"]
    assert group.kinds() == [OLD, OLD]


def test_a_group_in_both_stores_is_refused() -> None:
    group = make_group()
    group._check = lambda: None  # type: ignore[method-assign]
    group.instances["app1"].kind = PLAIN
    assert refusal_codes(group) == ["K38"]
    group.instances["app1"].kind = MIGRATING
    assert refusal_codes(group) == ["K58"]


def test_an_application_that_its_team_stopped_is_not_started() -> None:
    group = make_group()
    for one in group.instances.values():
        one.kind = None
    with pytest.raises(TimedOut, match="K55"):
        cut_over(group)
    assert not any(one.starts for one in group.instances.values())


def test_a_note_that_cannot_be_read_stops_everything() -> None:
    group = make_group()
    group.znodes |= {f"{ROOT}/migration": (b"", 0, 1), f"{ROOT}/migration/cutover": (b'{"version": 2}', 0, 1)}
    assert refusal_codes(group) == ["K94"]
    with pytest.raises(Refused, match="K94"):
        roll_back(group)
    assert group.kinds() == [OLD, OLD]


def test_a_new_version_that_cannot_be_stopped_keeps_the_old_one_from_starting() -> None:
    group = make_group()
    cut_over(group)
    group.ignoring = frozenset({("app1", "stopped")})
    with pytest.raises(TimedOut, match=r"K91.*app1"):
        roll_back(group)
    assert OLD not in group.kinds(), "both would read every partition"


def test_offsets_that_only_kafka_has_are_copied_back_before_the_old_version_starts() -> None:
    group = make_group()
    cut_over(group)
    group._tick(100.0)
    roll_back(group)
    check_old(group)  # the simulated instance would have begun too early otherwise


@pytest.mark.parametrize("goal", [Goal.KAFKA_MODE, Goal.ZOOKEEPER_MODE])
def test_a_goal_with_migrating_consumers_is_refused(goal: Goal) -> None:
    group = make_group()
    cut_over(group)
    with pytest.raises(Refused, match="K58"):
        run_step(make_group_rollback(group.spec, goal), group.context())
    assert group.kinds() == [PLAIN, PLAIN]


def test_the_note_is_cleaned_up_once_the_group_has_moved_and_not_before() -> None:
    group = make_group(mortal=Mortal(12))
    with pytest.raises(Killed):
        cut_over(group)
    with pytest.raises(Refused, match="K58"):
        run_step(CleanUp(group.spec), group.context())
    cut_over(group)
    run_step(CleanUp(group.spec), group.context())
    assert not group.children(f"{ROOT}/migration")
    roll_back(group)
    check_old(group)


def test_a_watch_finds_an_old_instance_that_is_back() -> None:
    group = make_group()
    cut_over(group)
    group._check = lambda: None  # type: ignore[method-assign]
    group.instances["app1"].kind = OLD
    with pytest.raises(Refused, match="is a member again") as refused:
        run_step(WatchGroup(group.spec), group.context())
    assert [reason.code for reason in refused.value.reasons] == ["V30"]


def commands_of(group: SimGroup) -> dict[str, list[str]]:
    """What each instance will be asked for, in order."""
    commands, switch = dict[str, list[str]](), group.switch

    def note(spec: GroupSpec, instance: InstanceSpec, kind: str, token: int) -> None:
        commands.setdefault(instance.name, []).append(str(kind))
        switch(spec, instance, kind, token)

    group.switch = note  # type: ignore[method-assign]
    return commands


def test_a_new_version_that_is_slow_to_join_is_stopped_before_the_old_one_starts() -> None:
    """It would join beside the old version after the rollback, and nothing would see it."""
    group = make_group(ignoring=frozenset({("app1", "kafka")}))
    commands = commands_of(group)
    assert refusal_codes(group) == ["K69", "K93"]
    check_old(group)
    assert commands == {name: ["stopped", "kafka", "stopped", "zookeeper"] for name in ("app0", "app1")}


@pytest.mark.parametrize("error", [Failed("exit code 1"), TimedOut("no answer"), Unreachable("no connection")])
@pytest.mark.parametrize(("failures", "stops"), [(1, 2), (2, 2)], ids=["once", "always"])
def test_a_stop_of_what_may_still_start_is_tried_once_more(error: Exception, failures: int, stops: int) -> None:
    """Taken for done, a stop that failed would let the new version join beside the old one; insisted on, it would keep the old one down."""
    group = make_group(ignoring=frozenset({("app1", "kafka")}))
    commands, switch, left = commands_of(group), group.switch, [failures]

    def fail(spec: GroupSpec, instance: InstanceSpec, kind: str, token: int) -> None:
        switch(spec, instance, kind, token)
        if instance.name == "app1" and kind == "stopped" and "kafka" in commands["app1"] and left[0]:
            left[0] -= 1
            raise error

    group.switch = fail  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "K93"]
    check_old(group)
    assert commands["app1"] == ["stopped", "kafka", *["stopped"] * stops, "zookeeper"]


def test_a_crashed_new_version_is_stopped_before_the_old_one_starts_by_hand() -> None:
    group = make_group()
    cut_over(group)
    group.instances["app1"].kind = None
    commands = commands_of(group)
    roll_back(group)
    check_old(group)
    assert commands == {name: ["stopped", "zookeeper"] for name in ("app0", "app1")}


def test_a_stop_command_that_stops_another_instance_brings_the_old_version_back() -> None:
    group = make_group()
    switch, first = group.switch, group.spec.instances[0]
    group.switch = lambda spec, one, kind, token: switch(  # type: ignore[method-assign]
        spec, first if kind == "stopped" else one, kind, token
    )
    assert refusal_codes(group) == ["K69", "K91"]
    check_old(group)


@pytest.mark.parametrize(
    ("field", "content", "codes"),
    [
        ("owners", {TopicPartition("idle", 1): "billing_app1-0"}, ["K69", "K91"]),
        ("owners", {TopicPartition("idle", 1): ""}, ["K69", "K91"]),
        ("registrations", {"billing_stranger": Registration("static", {"t": 1}, "1")}, ["K69", "K56"]),
        ("registrations", {"billing_app1": Unreadable(Flaw.NOT_JSON, "{")}, ["K69", "K91"]),
        ("offsets", {TopicPartition("idle", 1): StoredOffset(Unreadable(Flaw.NOT_A_NUMBER, "none"), 0.0)}, ["K69", "K42"]),
        ("offsets", {TopicPartition("idle", 1): StoredOffset(-1, 0.0)}, ["K69", "K42"]),
    ],
    ids=[
        "an owner of another session",
        "an owner without a name",
        "a member that joins",
        "a registration that nobody can read",
        "an offset that is no number any more",
        "an offset below 0",
    ],
)
def test_what_others_write_between_the_stop_and_the_copy_brings_the_old_version_back(
    field: str, content: dict[Any, Any], codes: list[str]
) -> None:
    group = make_group()
    seen = group.seen

    def look() -> GroupSeen:
        found = seen()
        assert found.zk is not None
        note = found.zk.cutover
        if group.kinds() or not isinstance(note, CutoverNote) or note.failed:
            return found
        return replace(found, zk=replace(found.zk, **{field: {**getattr(found.zk, field), **content}}))

    group.seen = look  # type: ignore[method-assign]
    assert refusal_codes(group) == codes
    check_old(group)
    assert not group.kafka, "nothing was copied"


@pytest.mark.parametrize(
    ("controller", "error"),
    [(ZkController(3000, 5, ephemeral=False), Refused), (None, TimedOut)],
    ids=["the cluster has left ZooKeeper mode", "all brokers are down"],
)
@pytest.mark.parametrize("way", list(GroupWay))
def test_what_reads_from_kafka_is_not_stopped_for_an_old_version_without_brokers(
    way: GroupWay, controller: ZkController | None, error: type[Exception]
) -> None:
    group = make_group()
    cut_over(group)
    group.spec, group.zk_view = replace(group.spec, way=way), replace(group.zk_view, broker_ids=(), controller=controller)
    with pytest.raises(error, match="K97"):
        roll_back(group)
    assert group.kinds() == [PLAIN, PLAIN]


def test_an_older_run_is_refused() -> None:
    group = make_group()
    older = group.context()
    group.context()
    with pytest.raises(Refused):
        run_step(CutOver(group.spec), older)
    assert group.kinds() == [OLD, OLD]
