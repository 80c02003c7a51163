"""The migrating member, hazard by hazard: sessions, the Kafka group, offsets, time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.messages import MemberAlarm
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.member.state import blocks_revocation, start_offset, stores_of_mode
from tests.core.member_talk import ALONE, KAFKA, ME, OTHER, SESSION, SHARED, T0, T1, TIMEOUT, Talk, alarms, observe

# ------------------------------------------------------------------------------------------------------------- sessions


def test_r9_a_broken_connection_pauses_and_every_node_is_checked_before_it_goes_on() -> None:
    talk = Talk().delivering(SHARED)
    assert talk.tell(messages.Suspended()) == (messages.PauseDelivery(T0, 1),)
    assert not talk.delivers
    talk.now += 1
    assert talk.alive() == (messages.ObserveGroup(), messages.CheckOwner(T0, 1))
    assert not talk.delivers, "it is not known yet"
    assert talk.tell(messages.OwnerIs(T0, 1, SESSION)) == (messages.Resume(T0, 1),)
    assert talk.delivers == {T0}


def test_r9_a_session_that_cannot_be_proven_delivers_nothing_without_any_event() -> None:
    """A process that was stopped for 5 s wakes in the middle of its loop."""
    talk = Talk().delivering(SHARED)
    talk.now = 3.9
    assert talk.delivers == {T0}
    talk.now = 4.0
    assert not talk.delivers
    assert talk.tell(messages.Tick()) == (messages.PauseDelivery(T0, 1),)


def test_an_answer_that_took_too_long_proves_nothing() -> None:
    talk = Talk().delivering(SHARED)
    talk.now = 10.0
    talk.tell(messages.Alive(SESSION, 5.0, TIMEOUT))
    assert not talk.delivers
    talk.tell(messages.Alive(SESSION, 2.0, TIMEOUT))
    assert talk.member.answered_at == 5.0


@pytest.mark.parametrize("event", [messages.Expired(), messages.Alive(8, 1.0, TIMEOUT)], ids=["expired", "another session"])
def test_r9_a_lost_session_drops_all_commits_nothing_deletes_nothing(event: messages.MemberEvent) -> None:
    talk = Talk().delivering(ALONE)
    talk.tell(messages.GroupObserved(SHARED))
    talk.now = 1.0
    said = talk.tell(event)
    assert said[:2] == (messages.Drop(T0, 1, TIMEOUT), messages.Drop(T1, 2, TIMEOUT))
    assert not any(isinstance(action, messages.CommitOffset | messages.ReleaseOwner) for action in said)
    assert not talk.delivers

    talk.alive(8)
    talk.tell(messages.Registered(8))
    assert talk.tell(messages.GroupObserved(replace(SHARED, session=8))) == (messages.Claim(T0, 3, f"{ME}-0"),)
    assert talk.tell(messages.OwnerIs(T0, 3, SESSION)) == (), "R16: our own name, but the old session's node"
    assert talk.tell(messages.OwnerIs(T0, 3, 8)) == (messages.ReadOffsets(T0, 3),)


def test_only_a_proven_holder_commits_and_releases() -> None:
    talk = Talk().delivering(ALONE)
    talk.tell(messages.GroupObserved(SHARED), messages.Suspended())
    assert talk.tell(messages.Stopped(T1, 2, 9)) == ()
    talk.now += 1
    assert messages.CommitOffset(T1, 2, 9, (Store.ZOOKEEPER, Store.KAFKA)) in talk.alive()


def test_what_was_asked_before_the_connection_broke_is_asked_again() -> None:
    talk = Talk()
    talk.registered(ALONE)
    talk.tell(messages.OwnerIs(T0, 1, SESSION), messages.Suspended())
    assert talk.tell(messages.OffsetsRead(T0, 1, 5, 5)) == (), "read while the owner was unknown"
    talk.now += 1
    assert talk.alive() == (messages.ObserveGroup(), messages.ReadOffsets(T0, 1), messages.Claim(T1, 2, f"{ME}-0"))


def test_a_claim_without_an_answer_that_is_not_wanted_any_more_is_only_looked_after() -> None:
    talk = Talk()
    talk.registered(ALONE)
    talk.tell(messages.Suspended(), messages.GroupObserved(SHARED))
    talk.now += 1
    assert messages.CheckOwner(T1, 2) in talk.alive()
    assert talk.tell(messages.OwnerIs(T1, 2, SESSION)) == (messages.ReleaseOwner(T1, 2),)


@pytest.mark.parametrize("owner", [None, 99], ids=["vanished", "another's"])
def test_r15_an_owner_node_that_is_lost_ends_the_generation(owner: int | None) -> None:
    talk = Talk().delivering(SHARED)
    said = talk.tell(messages.OwnerIs(T0, 1, owner))
    assert said == (
        messages.Drop(T0, 1),
        messages.Raise(MemberAlarm.OWNER_LOST, "t-0"),
        messages.ObserveGroup(),
        messages.Claim(T0, 2, f"{ME}-0"),
    )
    assert not talk.delivers


def test_a_node_lost_while_its_partition_is_let_go_takes_no_commit() -> None:
    talk = Talk().delivering(ALONE)
    talk.tell(messages.GroupObserved(SHARED))
    assert messages.Drop(T1, 2) in talk.tell(messages.OwnerIs(T1, 2, None))
    assert talk.tell(messages.Stopped(T1, 2, 9)) == ()


def test_a_release_that_did_not_work_is_made_again() -> None:
    talk = Talk().delivering(ALONE)
    talk.tell(messages.GroupObserved(SHARED), messages.Stopped(T1, 2, None), messages.OwnerIs(T1, 2, SESSION))
    assert talk.after(0.05) == (messages.ReleaseOwner(T1, 2),)


# ---------------------------------------------------------------------------------------------------------------- Kafka


def test_r10_put_out_of_the_kafka_group_in_kafka_mode() -> None:
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    assert talk.tell(messages.KafkaLost()) == (messages.StopDelivery(T0, 1),)
    assert not talk.delivers
    assert talk.tell(messages.Stopped(T0, 1, 9)) == (messages.CommitOffset(T0, 1, 9, (Store.ZOOKEEPER,)),), (
        "Kafka's may be a successor's by now"
    )
    assert talk.tell(messages.CommitDone(T0, 1, 9)) == (messages.ReleaseOwner(T0, 1),)


def test_r10_put_out_of_the_kafka_group_in_zookeeper_mode() -> None:
    talk = Talk().delivering(SHARED)
    assert talk.tell(messages.KafkaLost()) == ()
    assert talk.delivers == {T0}
    talk.tell(messages.CommitAsked(T0, 1, 9))
    talk.tell(messages.CommitDone(T0, 1, 9, frozenset({Store.KAFKA})))
    talk.now = 0.5
    talk.alive()
    assert talk.after(0.5) == (messages.CommitOffset(T0, 1, 9, (Store.KAFKA,)),), "queued and tried again"
    talk.tell(messages.CommitDone(T0, 1, 9))
    assert talk.after(1.5) == ()


def test_r11_a_kafka_member_that_is_not_polled_delivers_nothing_in_kafka_mode() -> None:
    talk = Talk(poll_limit=2.0).delivering(KAFKA, frozenset({T0}))
    talk.now = 1.9
    assert talk.delivers == {T0}
    assert alarms(talk.after(0.1)) == [MemberAlarm.NOT_POLLED]
    assert not talk.delivers
    talk.tell(messages.Polled())
    assert talk.delivers == {T0}


def test_r11_it_does_not_matter_in_zookeeper_mode() -> None:
    talk = Talk(poll_limit=2.0).delivering(SHARED)
    talk.now = 3.0
    assert talk.delivers == {T0}


def test_r11_user_code_that_never_comes_back_ends_the_process() -> None:
    talk = Talk(poll_limit=5.0).delivering(ALONE)
    talk.tell(messages.GroupObserved(SHARED))
    talk.now = 4.0
    talk.alive()
    assert messages.End() not in talk.after(0.9)
    said = talk.after(0.1)
    assert messages.End() in said
    assert MemberAlarm.HUNG in alarms(said)


def test_r12_a_commit_for_what_is_no_longer_held_is_dropped() -> None:
    talk = Talk().delivering(SHARED)
    assert talk.tell(messages.CommitAsked(T0, 1, 9)) == (messages.CommitOffset(T0, 1, 9, (Store.ZOOKEEPER, Store.KAFKA)),)
    for late in (messages.CommitAsked(T0, 99, 9), messages.CommitAsked(T1, 1, 9)):
        assert alarms(talk.tell(late)) == [MemberAlarm.LATE_COMMIT]
        assert len(talk.said) == 1


def test_r12_a_revocation_waits_until_stopped_committed_and_released() -> None:
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    seen = []
    for event in (
        messages.KafkaRevoked(frozenset({T0})),
        messages.Stopped(T0, 1, 9),
        messages.CommitDone(T0, 1, 9),
        messages.OwnerIs(T0, 1, None),
    ):
        seen.append(blocks_revocation(talk.member, {T0}))
        talk.tell(event)
    assert seen == [True] * 4
    assert not blocks_revocation(talk.member, {T0})


def test_without_zookeeper_a_revocation_waits_only_for_handlers() -> None:
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    talk.tell(messages.Suspended(), messages.KafkaRevoked(frozenset({T0})))
    assert blocks_revocation(talk.member, {T0})
    talk.tell(messages.Stopped(T0, 1, 9))
    assert not blocks_revocation(talk.member, {T0})


# -------------------------------------------------------------------------------------------------------------- offsets


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "reset", "expected"),
    [
        (5, 9, None, 9),
        (9, 5, None, 9),
        (None, 5, None, 5),
        (5, None, None, 5),
        (None, None, None, None),
        (-1, None, None, None),
        (9, 9, 2, 2),
        (None, None, 0, 0),
    ],
)
def test_r20_it_starts_at_the_larger_unless_an_operator_said_otherwise(
    zookeeper: int | None, kafka: int | None, reset: int | None, expected: int | None
) -> None:
    assert start_offset(messages.OffsetsRead(T0, 1, zookeeper, kafka, reset)) == expected


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "commits"),
    [
        (9, 5, [messages.CommitOffset(T0, 1, 9, (Store.KAFKA,))]),
        (9, None, [messages.CommitOffset(T0, 1, 9, (Store.KAFKA,))]),
        (5, 9, [messages.CommitOffset(T0, 1, 9, (Store.ZOOKEEPER,))]),
        (None, 9, [messages.CommitOffset(T0, 1, 9, (Store.ZOOKEEPER,))]),
        (9, 9, []),
        (None, None, []),
    ],
)
def test_r20_a_store_that_is_behind_the_start_gets_it_at_once(
    zookeeper: int | None, kafka: int | None, commits: list[messages.CommitOffset]
) -> None:
    talk = Talk()
    talk.registered(SHARED)
    talk.tell(messages.OwnerIs(T0, 1, SESSION))
    said = talk.tell(messages.OffsetsRead(T0, 1, zookeeper, kafka))
    assert [action for action in said if isinstance(action, messages.CommitOffset)] == commits


def test_r20_the_modes_own_store_comes_first() -> None:
    assert stores_of_mode(Mode.ZOOKEEPER) == (Store.ZOOKEEPER, Store.KAFKA)
    assert stores_of_mode(Mode.KAFKA) == (Store.KAFKA, Store.ZOOKEEPER)


def test_a_failed_last_commit_is_reported_and_does_not_keep_the_partition() -> None:
    talk = Talk().delivering(ALONE)
    talk.tell(messages.GroupObserved(SHARED), messages.Stopped(T1, 2, 9))
    assert talk.tell(messages.CommitDone(T1, 2, 8)) == (), "an earlier one"
    said = talk.tell(messages.CommitDone(T1, 2, 9, frozenset({Store.ZOOKEEPER})))
    assert alarms(said) == [MemberAlarm.UNCOMMITTED]
    assert messages.ReleaseOwner(T1, 2) in said


def test_a_commit_without_a_connection_is_made_later() -> None:
    talk = Talk().delivering(SHARED)
    talk.tell(messages.Suspended())
    assert talk.tell(messages.CommitAsked(T0, 1, 9)) == ()
    talk.now = 1.0
    talk.alive()
    talk.tell(messages.OwnerIs(T0, 1, SESSION))
    assert talk.after(1.0) == (messages.CommitOffset(T0, 1, 9, (Store.ZOOKEEPER, Store.KAFKA)),)


# ----------------------------------------------------------------------------------------------------------------- time


def test_r17_partitions_without_an_owner_are_reported_once_membership_is_stable() -> None:
    talk = Talk().delivering(replace(SHARED, owned=frozenset({T0})))
    seen = []
    for _ in range(16):
        talk.alive()
        seen += alarms(talk.after(1.0))
        talk.tell(messages.GroupObserved(replace(SHARED, owned=frozenset({T0}))))
    assert seen == [MemberAlarm.UNOWNED]


def test_what_plain_consumers_hold_lacks_no_owner() -> None:
    talk = Talk().delivering(replace(KAFKA, owned=frozenset({T0}), foreign=frozenset({T1})), frozenset({T0}))
    assert talk.member.unowned == {}


def test_r17_a_group_that_changes_is_not_blamed() -> None:
    talk = Talk().delivering(replace(SHARED, owned=frozenset({T0})))
    for i in range(16):
        talk.alive()
        assert MemberAlarm.UNOWNED not in alarms(talk.after(1.0))
        talk.tell(messages.GroupObserved(observe(plain=(OTHER, f"g_x-{i}"), owned=frozenset({T0}))))


def test_a_missed_watch_is_made_good_by_looking_now_and_then() -> None:
    talk = Talk().delivering(SHARED)
    talk.now = 4.0
    talk.tell(messages.Alive(SESSION, 3.9, TIMEOUT))
    assert messages.ObserveGroup() not in talk.tell(messages.Tick())
    talk.now = 5.0
    assert messages.ObserveGroup() in talk.tell(messages.Tick())


def test_a_claim_that_no_member_makes_room_for_is_reported() -> None:
    talk = Talk()
    talk.registered(SHARED)
    seen = []
    for _ in range(5):
        talk.tell(messages.OwnerIs(T0, 1, 99))
        talk.alive()
        seen += alarms(talk.after(1.0))
    assert seen == [MemberAlarm.BLOCKED]


def test_closing_lets_go_of_everything_then_leaves() -> None:
    talk = Talk().delivering(ALONE)
    assert talk.tell(messages.Closing()) == (messages.StopDelivery(T0, 1), messages.StopDelivery(T1, 2))
    talk.tell(
        messages.GroupObserved(ALONE), messages.Stopped(T0, 1, None), messages.Stopped(T1, 2, None), messages.OwnerIs(T0, 1, None)
    )
    assert not talk.member.closed
    assert talk.tell(messages.OwnerIs(T1, 2, None)) == (messages.Deregister(),)
    assert talk.member.closed
    assert talk.tell(messages.Tick(), messages.Registered(SESSION)) == ()


def test_closing_without_a_session_waits_for_nothing() -> None:
    talk = Talk().delivering(ALONE)
    talk.tell(messages.Closing(), messages.Expired())
    assert talk.member.closed
    talk.now = 1.0
    assert talk.alive(8) == ()


def test_an_operators_reset_counts_until_both_stores_go_on_from_there() -> None:
    talk = Talk()
    talk.registered(SHARED)
    talk.tell(messages.OwnerIs(T0, 1, SESSION))
    both = (Store.ZOOKEEPER, Store.KAFKA)
    assert talk.tell(messages.OffsetsRead(T0, 1, 100, 90, 7)) == (
        messages.StartDelivery(T0, 1, 7),
        messages.CommitOffset(T0, 1, 7, both),
    )
    assert talk.tell(messages.CommitDone(T0, 1, 7, frozenset({Store.KAFKA}))) == ()
    assert talk.tell(messages.CommitDone(T0, 1, 8, frozenset({Store.KAFKA}))) == (), "Kafka would still say 90"
    assert talk.tell(messages.CommitDone(T0, 1, 8)) == (messages.ForgetReset(T0, 1),)
    assert talk.tell(messages.CommitDone(T0, 1, 9)) == ()


def test_a_reset_is_not_forgotten_by_a_member_that_kafka_has_put_out() -> None:
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    held = talk.member.held[T0]
    talk.member = replace(talk.member, held={T0: replace(held, stale=frozenset(Store))})
    talk.tell(messages.KafkaLost())
    assert messages.ForgetReset(T0, held.generation) not in talk.tell(messages.CommitDone(T0, held.generation, 9))


def test_the_last_commit_makes_a_reset_good_before_the_partition_is_released() -> None:
    talk = Talk()
    talk.registered(SHARED)
    talk.tell(
        messages.OwnerIs(T0, 1, SESSION),
        messages.OffsetsRead(T0, 1, 100, None, 7),
        messages.CommitDone(T0, 1, 7, frozenset(Store)),
    )
    talk.tell(messages.Closing(), messages.Stopped(T0, 1, 12))
    assert talk.tell(messages.CommitDone(T0, 1, 12)) == (messages.ForgetReset(T0, 1), messages.ReleaseOwner(T0, 1))
