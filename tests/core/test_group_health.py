"""Whether a group goes on consuming, and what becomes of a watched instance, from series of observations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Cause
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.members import (
    GroupHealth,
    health_before_switch,
    health_fault_reasons,
    must_roll_back,
    restart_health_timers,
    starving_partitions,
    update_health,
)
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup, StoredOffset
from airflow_provider_kmigrate.core.member.registration import Registration
from tests.core.group_facts import KAFKA, MIGRATING, SPEC, STATIC, T0, T1, changed, group
from tests.core.views import codes


@pytest.mark.parametrize(
    ("causes", "back"),
    [([Cause.GROUP_UNHEALTHY], True), (["unread", "group_unhealthy"], True), ([Cause.FINALIZED], False), ([], False)],
)
def test_a_group_is_rolled_back_only_for_what_was_observed_of_it(causes: list[str], back: bool) -> None:
    assert must_roll_back(causes) is back


class TestHealth:
    def at(self, *observations: tuple[float, int, int]) -> tuple[GroupHealth, float]:
        """Observations (time, committed, log end) of partition 0."""
        health = GroupHealth()
        for now, committed, end in observations:
            seen = group("k", "k", "kafka", committed={T0: committed, T1: 10}, ends={T0: end, T1: 10})
            health = update_health(health, changed(seen, offsets={}), SPEC, now)
        return health, observations[-1][0]

    def test_a_partition_that_moves_or_waits_for_nothing_is_well(self) -> None:
        for series in (
            [(float(t), 10 + t, 1000) for t in range(0, 500, 50)],
            [(float(t), 10, 10) for t in range(0, 500, 50)],
            [(0.0, 10, 10), (400.0, 10, 10), (401.0, 10, 20), (480.0, 10, 30)],
        ):
            health, now = self.at(*series)
            assert starving_partitions(health, SPEC, now) == ()

    def test_records_that_wait_and_an_offset_that_stands_still(self) -> None:
        health, now = self.at((0.0, 10, 10), (10.0, 10, 20), (109.0, 10, 30))
        assert starving_partitions(health, SPEC, now) == (T0,)
        assert codes(health_fault_reasons(health, SPEC, now)) == ["V30"]

    def test_one_that_was_never_committed_starves_only_if_its_log_grows(self) -> None:
        health, now = self.at((0.0, -1, 10), (200.0, -1, 10))
        assert starving_partitions(health, SPEC, now) == ()
        health, now = self.at((0.0, -1, 10), (1.0, -1, 11), (102.0, -1, 11))
        assert starving_partitions(health, SPEC, now) == (T0,)
        health, now = self.at((0.0, -1, 10), (1.0, -1, 8), (2.0, -1, 9), (103.0, -1, 9))
        assert starving_partitions(health, SPEC, now) == (T0,), "of a topic that was made anew"

    def test_a_partition_that_is_no_longer_read_does_not_starve(self) -> None:
        """ZooKeeper keeps offsets for ever: of a topic that was deleted, and of one that is subscribed no more and gets records."""
        gone, left, day = TopicPartition("gone", 0), TopicPartition("left", 0), 86_400.0
        health = GroupHealth()
        for now in (0.0, 100.0, 200.0):
            seen = group("m", "m", ends={T0: 10, T1: 10, left: 1000 + int(now)})
            offsets = {
                gone: StoredOffset(5, day),
                left: StoredOffset(5, 0.0),
                T0: StoredOffset(10, day),
                T1: StoredOffset(10, day),
            }
            health = update_health(health, changed(seen, offsets=offsets), SPEC, now)
        assert health_fault_reasons(health, SPEC, 200.0) == ()

    def test_what_was_read_until_the_last_switch_and_is_not_any_more_starves(self) -> None:
        lost = TopicPartition("lost", 0)
        health = GroupHealth()
        for now in (0.0, 100.0, 200.0):
            seen = group("k", "k", "kafka", ends={T0: 10, T1: 10, lost: 10 + int(now)})
            offsets = {lost: StoredOffset(10, 1000.0), T0: StoredOffset(10, 900.0)}
            health = update_health(health, changed(seen, offsets=offsets), SPEC, now)
        assert starving_partitions(health, SPEC, 200.0) == (lost,)

    def test_a_partition_unsubscribed_of_late_does_not_starve_though_an_instance_was_missing_for_a_moment(self) -> None:
        dropped, day = TopicPartition("dropped", 0), 86_400.0
        offsets = {dropped: StoredOffset(5, day - 3600), T0: StoredOffset(10, day), T1: StoredOffset(10, day)}
        health = health_before_switch(changed(group("z", "m", ends={T0: 10, T1: 10, dropped: 50}), offsets=offsets))
        for now, one in ((0.0, ""), (1.0, "m"), (100.0, "m"), (200.0, "m")):
            health = update_health(
                health, changed(group(one, "m", ends={T0: 10, T1: 10, dropped: 50}), offsets=offsets), SPEC, now
            )
        assert health_fault_reasons(health, SPEC, 200.0) == ()

    def test_what_was_read_before_the_switch_has_to_be_read_after_it(self) -> None:
        """A single instance that comes back with fewer topics: its registration does not name the lost one any more."""
        lost = TopicPartition("lost", 0)
        seen = changed(group("z", "z"), partitions=frozenset({T0, T1, lost}), offsets={lost: StoredOffset(10, 0.0)})
        health = health_before_switch(replace(seen, ends={T0: 10, T1: 10, lost: 10}))
        for now in (0.0, 100.0, 200.0):
            health = update_health(health, group("m", "m", ends={T0: 10, T1: 10, lost: 11 + int(now)}), SPEC, now)
        assert starving_partitions(health, SPEC, 200.0) == (lost,)

    def test_the_marker_of_a_transaction_at_the_end_of_a_log_is_no_record(self) -> None:
        for series in (
            [(float(t), 10, 11) for t in range(0, 500, 50)],
            [(0.0, 5, 11), *((float(t), 10, 11) for t in range(50, 500, 50))],
        ):
            health, now = self.at(*series)
            assert starving_partitions(health, SPEC, now) == ()
        health, now = self.at((0.0, 10, 11), (400.0, 10, 11), (401.0, 10, 13), (490.0, 10, 13))
        assert starving_partitions(health, SPEC, now) == (), "the next one has not waited for long"
        health, now = self.at((0.0, 10, 11), (400.0, 10, 11), (401.0, 10, 13), (502.0, 10, 13))
        assert starving_partitions(health, SPEC, now) == (T0,)
        health, now = self.at((0.0, 10, 10), (1.0, 10, 11), (102.0, 10, 11))
        assert starving_partitions(health, SPEC, now) == (T0,), "a record that came"

    def test_what_waited_just_so_before_the_switch_does_not_count(self) -> None:
        """Aborted transactions: records that no consumer gets, and their markers."""
        seen = group("m", "z", ends={T0: 30, T1: 10})
        health = health_before_switch(seen)
        for now in (0.0, 100.0, 200.0):
            health = update_health(health, seen, SPEC, now)
        assert starving_partitions(health, SPEC, 200.0) == ()
        for now in (201.0, 302.0):
            health = update_health(health, group("m", "z", ends={T0: 40, T1: 10}), SPEC, now)
        assert starving_partitions(health, SPEC, 302.0) == (T0,)

    def test_without_the_end_of_its_log_nothing_is_said_of_a_partition(self) -> None:
        health = GroupHealth()
        for now in (0.0, 10.0, 200.0):
            health = update_health(health, group("m", "m", ends={T1: 10}), SPEC, now)
        assert health_fault_reasons(health, SPEC, 200.0) == ()

    def test_a_partition_that_did_not_move_while_it_was_unobserved_does_not_starve(self) -> None:
        health, _ = self.at((0.0, 10, 10), (1.0, 10, 20))
        for now in range(2, 300):
            health = restart_health_timers(health, float(now))
        seen = group("k", "", "kafka", committed={T0: 10, T1: 10}, ends={T0: 20, T1: 10})
        assert health_fault_reasons(update_health(health, seen, SPEC, 300.0), SPEC, 300.0) == ()
        assert codes(health_fault_reasons(update_health(health, seen, SPEC, 300.0), SPEC, 399.0)) == ["V30", "V30"]
        assert restart_health_timers(update_health(health, seen, SPEC, 300.0), 310.0).unstable_since == 310.0

    def test_the_watched_instance_and_stability(self) -> None:
        health = GroupHealth()
        for now in (0.0, 61.0):
            health = update_health(health, group("", "m"), SPEC, now, ("a", MIGRATING))
        assert codes(health_fault_reasons(health, SPEC, 61.0)) == ["V30", "V30"]
        assert health_fault_reasons(health, SPEC, 61.0, limit=62.0) == ()
        health = update_health(health, group("m", "m"), SPEC, 62.0, ("a", MIGRATING))
        assert health_fault_reasons(health, SPEC, 500.0 - 439.0) == ()

    @pytest.mark.parametrize(
        ("observations", "recoveries", "restarts"),
        [
            (["1", "1", "1"], 0, 0),
            (["1", "", "2", "", "3", "4"], 0, 3),  # it ends and is started again
            (["1", "12", "2", "23", "34"], 0, 1),  # the same, while Kafka keeps the one before for its session: two at once
            (["1", "123", "123"], 0, 0),  # an instance of three members, the first of which came first
            (["123", "456", "789", "abc"], 0, 3),
            (["1", "2"], 2, 3),  # two of which an earlier process saw
            (["", "1", "1"], 2, 2),
            (["", "123", "456"], 1, 2),  # what the earlier one saw of three members was one beginning
        ],
    )
    def test_an_instance_that_begins_again(self, observations: list[str], recoveries: int, restarts: int) -> None:
        health = GroupHealth(earlier=recoveries)
        for now, lives in enumerate(observations):
            members = [KafkaMember(life, f"a-{life}", frozenset({T0})) for life in lives]
            seen = group("", "k", "kafka", kafka=KafkaGroup("Stable", (*members, KafkaMember("b", "b", frozenset({T1})))))
            health = update_health(health, seen, SPEC, float(now), ("a", KAFKA))
        assert health.restarts == restarts
        assert codes(health_fault_reasons(health, SPEC, 10.0)) == (["V30"] if restarts >= 3 else [])

    def test_a_migrating_member_is_the_same_one_whatever_its_sessions_do(self) -> None:
        for stamps, recoveries in ((["7", "7"], 0), (["7", "8"], 1)):
            health = GroupHealth()
            for now, stamp in enumerate(stamps):
                entries = {"g_a": Registration("static", {"t": 1}, stamp), "g_b": STATIC}
                health = update_health(
                    health, changed(group("m", "m"), registrations=entries), SPEC, float(now), ("a", MIGRATING)
                )
            assert health.new_incarnations == recoveries
