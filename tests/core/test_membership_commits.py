"""The migrating member's commits that fail, are overtaken, or that no caller waits for any more: what it committed never goes back."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.group_seen import Store
from tests.core.member_talk import ALONE, KAFKA, SESSION, SHARED, T0, T1, Talk


def commits(said: tuple[messages.Action, ...]) -> list[messages.CommitOffset]:
    return [action for action in said if isinstance(action, messages.CommitOffset)]


def test_an_owed_commit_never_overtakes_a_newer_one() -> None:
    """The coordinator fails one, the application commits the next, and that is still under way when the first is due again."""
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    talk.tell(messages.CommitAsked(T0, 1, 120), messages.CommitDone(T0, 1, 120, frozenset({Store.KAFKA})))
    talk.now = 0.9
    talk.alive()
    assert talk.tell(messages.CommitAsked(T0, 1, 130)) == (messages.CommitOffset(T0, 1, 130, (Store.KAFKA, Store.ZOOKEEPER)),)
    assert commits(talk.after(0.2)) == []


def test_what_fails_after_a_newer_one_was_asked_for_is_not_owed() -> None:
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    talk.tell(messages.CommitAsked(T0, 1, 120), messages.CommitAsked(T0, 1, 110))  # an application may go back by itself
    talk.tell(messages.CommitDone(T0, 1, 120, frozenset({Store.KAFKA})))
    talk.alive()
    assert commits(talk.after(1.5)) == [], "the newer one goes to all stores"
    talk.tell(messages.CommitDone(T0, 1, 110, frozenset({Store.KAFKA})))
    assert commits(talk.after(1.5)) == [messages.CommitOffset(T0, 1, 110, (Store.KAFKA,))]
    talk.tell(messages.CommitAsked(T0, 1, 150), messages.CommitDone(T0, 1, 110, frozenset({Store.KAFKA})))
    assert commits(talk.after(1.0)) == []


def test_kafka_gets_one_more_commit_when_no_abandoned_one_can_take_effect() -> None:
    """The holder before may have given up its last one, and so may we: by another connection it comes after ours."""
    talk = Talk(late_commit=10.0).delivering(SHARED)
    talk.tell(messages.CommitAsked(T0, 1, 120), messages.CommitDone(T0, 1, 120))
    for second in range(1, 10):
        talk.now = float(second)
        talk.alive()
        assert commits(talk.tell(messages.Tick())) == []
    talk.now = 10.0
    talk.alive()
    assert commits(talk.tell(messages.Tick())) == [messages.CommitOffset(T0, 1, 120, (Store.KAFKA,))]
    talk.tell(messages.CommitDone(T0, 1, 120))
    talk.now = 13.0
    talk.alive()
    assert commits(talk.tell(messages.Tick())) == []


def test_offsets_that_were_not_committed_are_not_sent_either() -> None:
    """An application may keep its offsets elsewhere, or commit them in transactions."""
    talk = Talk(late_commit=2.0).delivering(SHARED)
    assert commits(talk.after(3.0)) == []


START = messages.CommitOffset(T0, 1, 5, (Store.KAFKA,))


@pytest.mark.parametrize(
    ("kafka", "foreign", "expected"),
    [
        (3, False, [START]),
        (5, False, []),
        (9, False, [START]),
        (3, True, [START]),
        (5, True, []),
        (9, True, []),  # the application commits in transactions, and is never set back
    ],
)
def test_without_a_commit_of_the_application_kafka_keeps_the_start(
    kafka: int, foreign: bool, expected: list[messages.CommitOffset]
) -> None:
    """A late commit of the holder before is committed over, whichever is larger."""
    talk = Talk(late_commit=2.0).delivering(SHARED)
    assert messages.ReadKafka(T0, 1) in talk.after(3.0)
    assert commits(talk.tell(messages.KafkaRead(T0, 1, kafka, foreign))) == expected
    assert messages.ReadKafka(T0, 1) not in talk.after(3.0), "once is enough"


@pytest.mark.parametrize(("zookeeper", "kafka"), [(5, 2), (2, 5)])
def test_a_start_that_was_written_to_one_store_never_sets_an_application_back_that_commits_in_transactions(
    zookeeper: int, kafka: int
) -> None:
    talk = Talk(late_commit=2.0)
    talk.registered(SHARED)
    talk.tell(messages.OwnerIs(T0, 1, SESSION), messages.OffsetsRead(T0, 1, zookeeper, kafka), messages.CommitDone(T0, 1, 5))
    talk.now = 3.0
    talk.alive()
    said = talk.tell(messages.Tick())
    assert (commits(said), messages.ReadKafka(T0, 1) in said) == ([], True)
    assert commits(talk.tell(messages.KafkaRead(T0, 1, 9, foreign=True))) == []


@pytest.mark.parametrize(
    ("kafka", "foreign", "expected"),
    [(4, False, [messages.CommitOffset(T0, 1, 4, (Store.ZOOKEEPER, Store.KAFKA))]), (4, True, []), (None, False, [])],
)
def test_a_late_commit_where_nothing_was_committed_at_the_start_goes_to_both_stores(
    kafka: int | None, foreign: bool, expected: list[messages.CommitOffset]
) -> None:
    """The holder began where `auto.offset.reset` said, and has no offset of its own: the earlier holder's is the group's."""
    talk = Talk(late_commit=2.0)
    talk.registered(SHARED)
    talk.tell(messages.OwnerIs(T0, 1, SESSION), messages.OffsetsRead(T0, 1, None, None))
    talk.now = 3.0
    talk.alive()
    assert messages.ReadKafka(T0, 1) in talk.tell(messages.Tick())
    assert commits(talk.tell(messages.KafkaRead(T0, 1, kafka, foreign))) == expected


def test_kafka_that_does_not_tell_is_asked_again_later() -> None:
    talk = Talk(late_commit=2.0).delivering(SHARED)
    talk.after(3.0)
    talk.alive()
    assert commits(talk.tell(messages.KafkaRead(T0, 1, None))) == []
    assert messages.ReadKafka(T0, 1) not in talk.after(1.0)
    assert messages.ReadKafka(T0, 1) in talk.after(1.5)


def test_an_answer_that_comes_when_something_was_committed_counts_no_more() -> None:
    talk = Talk(late_commit=2.0).delivering(SHARED)
    talk.after(3.0)
    talk.tell(messages.CommitAsked(T0, 1, 7), messages.CommitDone(T0, 1, 7))
    assert commits(talk.tell(messages.KafkaRead(T0, 1, 3))) == []


def test_an_answer_that_comes_without_a_connection_is_asked_for_again() -> None:
    talk = Talk(late_commit=2.0).delivering(SHARED)
    talk.after(3.0)
    assert commits(talk.tell(messages.Suspended(), messages.KafkaRead(T0, 1, 3))) == []
    talk.alive()
    talk.tell(messages.OwnerIs(T0, 1, SESSION))
    assert messages.ReadKafka(T0, 1) in talk.after(0.5)


def test_what_is_still_owed_is_committed_when_its_partition_is_let_go() -> None:
    talk = Talk().delivering(ALONE)
    talk.tell(
        messages.CommitAsked(T1, 2, 9), messages.CommitDone(T1, 2, 9, frozenset({Store.KAFKA})), messages.GroupObserved(SHARED)
    )
    assert commits(talk.tell(messages.Stopped(T1, 2, None))) == [messages.CommitOffset(T1, 2, 9, (Store.ZOOKEEPER, Store.KAFKA))]
    assert talk.tell(messages.CommitDone(T1, 2, 9)) == (messages.ReleaseOwner(T1, 2),)


def test_what_was_put_off_for_lack_of_a_connection_is_over_with_the_next_commit() -> None:
    talk = Talk().delivering(SHARED)
    talk.tell(messages.Suspended(), messages.CommitAsked(T0, 1, 9))
    talk.now = 0.5
    talk.alive()
    talk.tell(messages.OwnerIs(T0, 1, SESSION), messages.CommitAsked(T0, 1, 12))
    assert commits(talk.after(1.0)) == []


def test_a_claim_that_is_under_way_while_kafka_loses_the_member_commits_to_both_stores_afterwards() -> None:
    """As when one of two embedded consumers is put out while the other one has been given the partition."""
    talk = Talk()
    talk.tell(messages.Polled())
    talk.registered(KAFKA)
    talk.tell(messages.KafkaAssigned(frozenset({T0})), messages.KafkaLost(), messages.KafkaAssigned(frozenset({T0})))
    talk.gain(T0)
    assert commits(talk.tell(messages.CommitAsked(T0, 1, 9))) == [messages.CommitOffset(T0, 1, 9, (Store.KAFKA, Store.ZOOKEEPER))]
