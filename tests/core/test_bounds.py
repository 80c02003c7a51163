"""The numbers that decisions compare with: each is changed on purpose, here too, or not at all. Seconds if nothing else is said."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.back import gates as back_gates
from airflow_provider_kmigrate.core.files import config_matrix
from airflow_provider_kmigrate.core.forward import (
    broker_canary,
    compared,
    cures,
    first_broker,
    green,
    leaders,
    moved,
    provision,
    standstill,
    stuck_leader,
)
from airflow_provider_kmigrate.core.groups import health, members
from airflow_provider_kmigrate.core.member import state
from airflow_provider_kmigrate.core.spark import hold, quiet


@pytest.mark.parametrize(
    ("what", "value", "expected"),
    [
        ("a rollback's dual-write has not moved", back_gates.STILL_FOR, 2.0),
        ("a gate's dual-write has not moved", gates.STILL, 1.5),
        ("records that a follower may be behind", gates._CAUGHT_UP, 3),
        ("a view is of just now", gates.JUST_NOW, 0.75),
        ("records that ZooKeeper may be behind", gates.MOST_LAG, 50),
        ("ms of idleness that a controller's file may allow", config_matrix._MOST_IDLE_MS, 1_000),
        ("Kafka's default of reserved.broker.max.id", config_matrix._DEFAULT_RESERVED_MAX_ID, 1_000),
        ("observations that a canary's verdict needs", broker_canary.LOOKS, 8),
        ("before a canary is compared", broker_canary.SETTLING, 10.0),
        ("over which a canary is compared", broker_canary.WINDOW, 15.0),
        ("times slower than the others", broker_canary.TIMES_SLOWER, 3.0),
        ("and slower than the others by", broker_canary.SECONDS_SLOWER, 0.25),
        ("share of observations without an answer", broker_canary.SILENT_SHARE, 0.3),
        ("departures from ISRs", broker_canary.DEPARTURES, 3),
        ("observations that a bake keeps", first_broker._KEPT, 3_000),
        ("between comparisons of the metadata", compared._EVERY, 300.0),
        ("between comparisons that found a difference", compared._AGAIN, 15.0),
        ("before a broker without metadata is helped", cures.DEAF_FOR, 8.0),
        ("after a restart, for which a soak does not count", green._SETTLING, 10.0),
        ("for which a partition without leader is left out", leaders.LEFT_OUT_FOR, 10.0),
        ("rounds of elections", leaders.MOST_ROUNDS, 20),
        ("in which a controller's records must move", moved.WINDOW, 10.0),
        ("for which an approval's audit holds", provision.VERDICT_HOLDS, 86_400.0),
        ("in which the active controller writes a record", provision._MOVES_WITHIN, 2.0),
        ("before a stalled dual-write is acted on", standstill.PATIENCE, 20.0),
        ("more for each partition", standstill._A_PARTITION, 0.002),
        ("acts on one stalled dual-write", standstill.MAX_RECOVERIES, 3),
        ("before such an act is forgotten", standstill.FORGOTTEN_AFTER, 600.0),
        ("before a leader that admits no follower is restarted", stuck_leader.PATIENCE, 20.0),
        ("records that its followers may be behind", stuck_leader.CAUGHT_UP, 1_000),
        ("for which a group may rebalance", health.UNREST, 60.0),
        ("restarts of members", health.RESTARTS, 3),
        ("stretches of a watch", health.STRETCHES, 10),
        ("before a member that has gone is forgotten", members._FORGOTTEN, 86_400.0),
        ("share of a session that an owner may rely on", state.LEASE, 2 / 3),
        ("format of the reports of Spark jobs", hold.VERSION, 1),
        ("ms without a word of a Spark job", hold.SILENT_MS, 60_000),
        ("ms after which an act of an unknown run does not count", quiet.RECENT_MS, 3_600_000),
    ],
)
def test_the_bounds_of_decisions(what: str, value: float, expected: float) -> None:
    assert value == expected, what
