"""The numbers that decisions compare with: each is changed on purpose, here too, or not at all. Seconds if nothing else is said."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.groups import members
from airflow_provider_kmigrate.core.member import state
from airflow_provider_kmigrate.core.migration import controllers, gates, handover, recovery, roll, waits
from airflow_provider_kmigrate.core.node_files import config_matrix
from airflow_provider_kmigrate.core.spark import hold, job_risks


@pytest.mark.parametrize(
    ("what", "value", "expected"),
    [
        ("a rollback's dual-write has not moved", handover.STILL_FOR, 2.0),
        ("a gate's dual-write has not moved", gates.STILL, 1.5),
        ("records that a follower may be behind", gates._CAUGHT_UP, 3),
        ("a view is of just now", gates.JUST_NOW, 0.75),
        ("records that ZooKeeper may be behind", gates.MOST_LAG, 50),
        ("ms of idleness that a controller's file may allow", config_matrix._MOST_IDLE_MS, 1_000),
        ("Kafka's default of reserved.broker.max.id", config_matrix._DEFAULT_RESERVED_MAX_ID, 1_000),
        ("observations that a canary's verdict needs", roll.MIN_SAMPLES, 8),
        ("before a canary is compared", roll.SETTLING, 10.0),
        ("over which a canary is compared", roll.JUDGED_FOR, 15.0),
        ("times slower than the others", roll.TIMES_SLOWER, 3.0),
        ("and slower than the others by", roll.SECONDS_SLOWER, 0.25),
        ("share of observations without an answer", roll.UNRESPONSIVE_SHARE, 0.3),
        ("departures from ISRs", roll.DEPARTURES, 3),
        ("observations that a bake keeps", roll._KEPT, 3_000),
        ("between comparisons of the metadata", waits._EVERY, 300.0),
        ("between comparisons that found a difference", waits._AGAIN, 15.0),
        ("before a broker without metadata is helped", recovery.OUT_OF_ISR_FOR, 8.0),
        ("after a restart, for which a soak does not count", waits._SETTLING, 10.0),
        ("for which a partition without leader is left out", roll.LEFT_OUT_FOR, 10.0),
        ("rounds of elections", roll.MOST_ROUNDS, 20),
        ("in which a controller's records must move", roll.WINDOW, 10.0),
        ("for which an approval's audit holds", controllers.VERDICT_HOLDS, 86_400.0),
        ("in which the active controller writes a record", controllers._MOVES_WITHIN, 2.0),
        ("before a stalled dual-write is acted on", recovery.STALLED_FOR, 20.0),
        ("more for each partition", recovery._A_PARTITION, 0.002),
        ("acts on one stalled dual-write", recovery.MAX_RECOVERIES, 3),
        ("before such an act is forgotten", recovery.FORGOTTEN_AFTER, 600.0),
        ("before a leader that admits no follower is restarted", recovery.STUCK_FOR, 20.0),
        ("records that its followers may be behind", recovery.CAUGHT_UP, 1_000),
        ("for which a group may rebalance", members.REBALANCE_LIMIT, 60.0),
        ("restarts of members", members.RESTARTS, 3),
        ("healthy periods of a watch", members.HEALTHY_PERIODS, 10),
        ("before a member that has gone is forgotten", members._FORGOTTEN, 86_400.0),
        ("share of a session that an owner may rely on", state.LEASE, 2 / 3),
        ("format of the reports of Spark jobs", hold.VERSION, 1),
        ("ms without a word of a Spark job", hold.UNRESPONSIVE_MS, 60_000),
        ("ms after which an act of an unknown run does not count", job_risks.RECENT_MS, 3_600_000),
    ],
)
def test_the_bounds_of_decisions(what: str, value: float, expected: float) -> None:
    assert value == expected, what
