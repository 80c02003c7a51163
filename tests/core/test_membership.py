"""The migrating member: how it gains and loses partitions, and what mode and membership mean to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.membership import step
from airflow_provider_kmigrate.core.member.messages import GroupView, MemberAlarm
from airflow_provider_kmigrate.core.member.registration import MemberProgress, Mode, Registration, read_registration
from airflow_provider_kmigrate.core.member.state import PartitionStage, due_commits, is_current_generation
from tests.core.member_talk import ALONE, BOTH, KAFKA, ME, OTHER, SESSION, SHARED, T0, T1, WANT, Talk, alarms, observe

# --------------------------------------------------------------------------------------------------------- gain and loss


def test_a_partition_is_claimed_then_read_then_started() -> None:
    talk = Talk()
    assert talk.alive() == (messages.Register(SESSION),)
    assert talk.tell(messages.Registered(SESSION)) == (messages.ObserveGroup(),)
    assert talk.tell(messages.GroupObserved(SHARED)) == (messages.Claim(T0, 1, f"{ME}-0"),)
    assert not talk.delivers
    assert talk.tell(messages.OwnerIs(T0, 1, SESSION)) == (messages.ReadOffsets(T0, 1),)
    assert not talk.delivers
    assert talk.tell(messages.OffsetsRead(T0, 1, 5, 5)) == (messages.StartDelivery(T0, 1, 5),)
    assert talk.delivers == {T0}
    assert talk.member.settled


def test_a_partition_is_stopped_then_committed_then_released() -> None:
    talk = Talk().delivering(ALONE)
    generation = talk.generation(T1)

    assert talk.tell(messages.GroupObserved(SHARED)) == (messages.StopDelivery(T1, generation),)
    assert talk.delivers == {T0}
    commit = messages.CommitOffset(T1, generation, 9, (Store.ZOOKEEPER, Store.KAFKA))
    assert talk.tell(messages.Stopped(T1, generation, 9)) == (commit,)
    assert talk.tell(messages.CommitDone(T1, generation, 9)) == (messages.ReleaseOwner(T1, generation),)
    assert talk.tell(messages.OwnerIs(T1, generation, None)) == ()
    assert talk.stages() == {T0: PartitionStage.DELIVERING}


def test_nothing_to_commit_is_released_at_once() -> None:
    talk = Talk().delivering(ALONE)
    generation = talk.generation(T1)
    talk.tell(messages.GroupObserved(SHARED))
    assert talk.tell(messages.Stopped(T1, generation, None)) == (messages.ReleaseOwner(T1, generation),)


def test_r18_everything_is_let_go_before_anything_is_claimed() -> None:
    talk = Talk().delivering(KAFKA, frozenset({T1}))
    said = talk.tell(messages.GroupObserved(SHARED))
    assert said == (messages.StopDelivery(T1, 1), messages.Claim(T0, 2, f"{ME}-0"))


def test_a_partition_wanted_again_while_it_is_released_is_claimed_again() -> None:
    talk = Talk().delivering(ALONE)
    old = talk.generation(T1)
    talk.tell(messages.GroupObserved(SHARED), messages.GroupObserved(ALONE))
    assert talk.stages()[T1] is PartitionStage.STOPPING
    talk.tell(messages.Stopped(T1, old, None))
    assert talk.tell(messages.OwnerIs(T1, old, None)) == (messages.Claim(T1, 3, f"{ME}-0"),)


@pytest.mark.parametrize("answer", [OTHER, None], ids=["another's", "no owner"])
def test_a_refused_claim_waits_and_is_made_again(answer: str | None) -> None:
    talk = Talk()
    talk.registered(SHARED)
    assert talk.tell(messages.OwnerIs(T0, 1, 99 if answer else None)) == ()
    assert not talk.delivers
    assert talk.after(0.01) == ()
    assert talk.after(0.05) == (messages.Claim(T0, 1, f"{ME}-0"),)
    talk.now += 0.1
    assert talk.tell(messages.OwnerIs(T0, 1, None)) == (messages.Claim(T0, 1, f"{ME}-0"),), (
        "a watch that fires is not kept waiting"
    )


def test_a_claim_that_is_not_wanted_any_more_is_undone_when_it_worked() -> None:
    talk = Talk()
    talk.registered(ALONE)
    generation = talk.generation(T1)
    talk.tell(messages.GroupObserved(SHARED))
    assert talk.stages()[T1] is PartitionStage.CLAIMING
    assert talk.tell(messages.OwnerIs(T1, generation, SESSION)) == (messages.ReleaseOwner(T1, generation),)


def test_a_claim_that_is_not_wanted_any_more_is_forgotten_when_it_was_refused() -> None:
    talk = Talk()
    talk.registered(ALONE)
    generation = talk.generation(T1)
    talk.tell(messages.GroupObserved(SHARED))
    assert talk.tell(messages.OwnerIs(T1, generation, 99)) == (messages.ReleaseOwner(T1, generation),), (
        "99 may be its own next session"
    )
    assert T1 not in talk.stages()


def test_a_node_of_ours_that_we_know_nothing_of_is_released() -> None:
    """A create that was answered after its generation was over, or that ran in the next session."""
    talk = Talk().delivering(SHARED)
    assert talk.tell(messages.OwnerIs(T1, 99, SESSION)) == (messages.ReleaseOwner(T1, 99),)
    assert talk.tell(messages.OwnerIs(T1, 99, 8)) == ()


@pytest.mark.parametrize(
    "event",
    [
        messages.OwnerIs(T0, 99, 8),
        messages.OffsetsRead(T0, 99, 1, 1),
        messages.Stopped(T0, 99, 1),
        messages.CommitDone(T0, 99, 1, frozenset(Store)),
    ],
)
def test_what_comes_for_another_generation_changes_nothing(event: messages.MemberEvent) -> None:
    talk = Talk().delivering(SHARED)
    before = talk.member
    assert talk.tell(event) == ()
    assert talk.member == before
    assert not is_current_generation(talk.member, T0, 99)


# ----------------------------------------------------------------------------------------------------- mode and members


@pytest.mark.parametrize(
    ("view", "mode"),
    [
        (KAFKA, Mode.KAFKA),
        (replace(KAFKA, mode_data=b"kafka\n"), Mode.ZOOKEEPER),
        (replace(KAFKA, mode_data=None), Mode.ZOOKEEPER),
        (replace(KAFKA, migrating=frozenset({ME})), Mode.ZOOKEEPER),
        (replace(KAFKA, migrating=KAFKA.migrating | {"g_gone-1"}), Mode.KAFKA),
        (observe(mode=b"kafka", plain=(OTHER,)), Mode.ZOOKEEPER),
    ],
    ids=["toggle", "R22 newline", "no znode", "R2 joiner half there", "one left meanwhile", "R5 old consumer"],
)
def test_r4_r22_anything_doubtful_is_zookeeper_mode(view: GroupView, mode: Mode) -> None:
    assert view.mode is mode


def test_r3_the_mode_switch_moves_the_source_of_the_assignment_both_ways() -> None:
    talk = Talk().delivering(SHARED)
    talk.tell(messages.KafkaAssigned(frozenset({T1})))
    assert talk.said == (), "what Kafka gives means nothing while ZooKeeper coordinates"

    assert talk.tell(messages.GroupObserved(KAFKA)) == (messages.StopDelivery(T0, 1), messages.Claim(T1, 2, f"{ME}-0"))
    talk.tell(messages.OwnerIs(T1, 2, 99))
    assert not talk.delivers, "R1: the other member has not seen the toggle yet"
    talk.tell(messages.OwnerIs(T1, 2, SESSION), messages.OffsetsRead(T1, 2, 5, 5))
    assert talk.delivers == {T1}


def test_r5_an_old_consumer_joins_in_kafka_mode() -> None:
    talk = Talk().delivering(observe(mode=b"kafka"), BOTH)
    assert talk.delivers == BOTH
    generation = talk.generation(T1)
    assert talk.tell(messages.GroupObserved(observe(mode=b"kafka", plain=(OTHER,)))) == (messages.StopDelivery(T1, generation),)
    assert talk.after(3.9) == ()
    talk.alive()
    assert alarms(talk.after(0.1)) == [MemberAlarm.SLOW], "user code has to stop before the old consumer gives up"


def test_r1_progress_is_published_with_the_epoch_it_is_about() -> None:
    talk = Talk()
    talk.alive()
    talk.tell(messages.Registered(SESSION))
    said = []
    for event in (
        messages.GroupObserved(SHARED),
        messages.OwnerIs(T0, 1, SESSION),
        messages.OffsetsRead(T0, 1, 5, 5),
        messages.GroupObserved(replace(KAFKA, epoch=4)),
    ):
        talk.member, actions = step(talk.member, event, 0.0)
        said += [action.progress for action in actions if isinstance(action, messages.Publish)]
    assert said == [
        MemberProgress(3, Mode.ZOOKEEPER, settled=False),
        MemberProgress(3, Mode.ZOOKEEPER, settled=True),
        MemberProgress(4, Mode.KAFKA, settled=False),
    ]


def test_r7_what_a_plain_consumer_holds_is_left_alone_in_zookeeper_mode() -> None:
    talk = Talk()
    said = talk.registered(observe(foreign=frozenset({T1})))
    assert alarms(said) == [MemberAlarm.FOREIGN]
    assert [action.where for action in said if isinstance(action, messages.Claim)] == [T0]
    assert alarms(talk.tell(messages.GroupObserved(observe(foreign=frozenset({T1}))))) == [], "once"


def test_an_unreadable_registration_changes_nothing() -> None:
    talk = Talk().delivering(SHARED)
    said = talk.tell(messages.GroupObserved(observe(plain=(OTHER,), others={"pykafka": read_registration(b"t")})))
    assert alarms(said) == [MemberAlarm.FROZEN]
    assert talk.delivers == {T0}
    assert talk.tell(messages.GroupObserved(SHARED)) == ()


@pytest.mark.parametrize("gone", ["ids", "migration ids"])
def test_a_member_whose_registration_was_deleted_registers_again(gone: str) -> None:
    talk = Talk().delivering(SHARED)
    view = replace(SHARED, registrations={OTHER: WANT}) if gone == "ids" else replace(SHARED, migrating=frozenset())
    said = talk.tell(messages.GroupObserved(view))
    assert messages.Register(SESSION) in said
    assert (messages.StopDelivery(T0, 1) in said) == (gone == "ids"), "without it in ids others share out its partitions"


def test_a_view_of_another_session_is_not_looked_at() -> None:
    talk = Talk().delivering(SHARED)
    assert talk.tell(messages.GroupObserved(replace(ALONE, session=6))) == ()


def test_another_stream_is_written_into_the_node_and_nothing_stops() -> None:
    """One partition less before it in the order: t-1 moves from the second stream to the first."""
    talk = Talk()
    talk.member = replace(talk.member, settings=replace(talk.member.settings, registration=Registration("static", {"t": 2})))
    wide = replace(KAFKA, registrations={ME: Registration("static", {"t": 2})}, migrating=frozenset({ME}))
    talk.delivering(wide, BOTH)
    assert talk.member.held[T1].thread == f"{ME}-1"
    said = talk.tell(messages.KafkaRevoked(frozenset({T0})))
    assert said == (messages.StopDelivery(T0, 1), messages.Relabel(T1, 2, f"{ME}-0"))
    assert talk.delivers == {T1}


def test_a_later_commit_stands_for_those_that_wait_before_it() -> None:
    both, kafka = (Store.ZOOKEEPER, Store.KAFKA), (Store.KAFKA,)
    first, second, third = (
        messages.CommitOffset(T0, 1, offset, both) for offset in (5, 6, 4)
    )  # the last word counts, not the largest
    assert due_commits([first, second, third]) == [(third, (first, second, third))]
    owed, other = messages.CommitOffset(T0, 1, 6, kafka), messages.CommitOffset(T0, 2, 9, both)
    assert due_commits([first, owed]) == [(first, (first,)), (owed, (owed,))]
    assert due_commits([first, owed, third]) == [(third, (first, owed, third))]
    assert due_commits([third, other]) == [(third, (third,)), (other, (other,))]
    assert due_commits([]) == []
