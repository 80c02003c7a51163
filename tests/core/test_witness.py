"""Kafka's own gauges: what is read of an answer, whatever it is, and when they contradict an observation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.monitoring.gauges import PHASES
from airflow_provider_kmigrate.core.monitoring.witness import (
    EXPECTED,
    KafkaGauges,
    describe_witness,
    find_contradictions,
    read_gauges,
)
from tests.core.back_views import DUAL, FINAL, HYBRID, UP3
from tests.core.views import MIG, ZK, cluster

DEFAULT_RULES = """\
# HELP kafka_controller_KafkaController_Value Attribute exposed for management
# TYPE kafka_controller_KafkaController_Value untyped
kafka_controller_KafkaController_Value{name="ActiveControllerCount",} 1.0
kafka_controller_KafkaController_Value{name="ZkMigrationState",} 1.0
kafka_controller_KafkaController_Value{name="ZkWriteBehindLag",} 3.0 1700000000000
"""
OWN_RULES = "# zkmigrationstate\nkafka_controller_kafkacontroller_zkmigrationstate 1\nkafka_controller_kafkacontroller_zkwritebehindlag 3\n"
SNAKE_RULES = 'kafka_controller_zk_migration_state{job="a b}",instance="c"} 1\nkafka_controller_zk_write_behind_lag 3.0\n'


def jolokia(value: Any, mbean: Any = "kafka.controller:name=Zk*,type=KafkaController", **more: Any) -> str:
    return json.dumps({"request": {"mbean": mbean, "type": "read"}, "value": value, "status": 200, **more})


def bean(name: str, value: Any) -> dict[str, Any]:
    return {f"kafka.controller:name={name},type=KafkaController": {"Value": value}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (DEFAULT_RULES, KafkaGauges(1, 3)),
        (OWN_RULES, KafkaGauges(1, 3)),
        (SNAKE_RULES, KafkaGauges(1, 3)),
        ("zkMigrationState 2.0\r\n", KafkaGauges(2)),
        (DEFAULT_RULES * 2, KafkaGauges(1, 3)),
        (jolokia(bean("ZkMigrationState", 1) | bean("ZkWriteBehindLag", 3) | bean("Other", "x")), KafkaGauges(1, 3)),
        (jolokia({"Value": 3}, "kafka.controller:name=ZkMigrationState,type=KafkaController"), KafkaGauges(3)),
    ],
)
def test_an_exporter_and_jolokia_are_read(body: str, expected: KafkaGauges) -> None:
    assert read_gauges(body.encode()) == expected


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>sign in</html>",
        "\xff".encode("latin-1"),
        "kafka_controller_KafkaController_Value 1.0",
        "zkmigrationstate",
        "zkmigrationstate{a=}",
        "zkmigrationstate NaN",
        "zkmigrationstate +Inf",
        "zkmigrationstate -1",
        "zkmigrationstate 1.5",
        "zkmigrationstate one",
        "zkmigrationstate 1e300",
        "zkmigrationstate 1\nother_zkmigrationstate 2",
        "{",
        "[" * 100_000,
        "{" * 100_000,
        "{}",
        '{"value": null}',
        '{"value": "Value"}',
        jolokia({}),
        jolokia("Value"),
        jolokia({"Value": 1}, None),
        jolokia({"Value": 1}, ["ZkMigrationState"]),
        jolokia({"ZkMigrationState": 1}),
        jolokia(bean("ZkMigrationState", "1")),
        jolokia(bean("ZkMigrationState", True)),
        jolokia(bean("ZkMigrationState", None)),
        jolokia(bean("ZkMigrationState", [1])),
        '{"request": {"mbean": "ZkMigrationState"}, "value": {"Value": 1e999}}',
        '{"status": 404, "error": "javax.management.InstanceNotFoundException"}',
    ],
)
def test_any_other_answer_is_one_that_was_not_read(body: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_gauges(body if isinstance(body, bytes) else body.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
ANSWERS = st.binary() | st.text().map(lambda text: f"zkmigrationstate{text}".encode())


@given(ANSWERS | JSON.map(lambda value: json.dumps({"value": value}).encode()))
def test_nothing_but_a_value_error_comes_of_any_content(body: bytes) -> None:
    try:
        found = read_gauges(body)
    except ValueError:
        return
    assert {type(found.state), type(found.lag)} in ({int}, {int, type(None)})


FIRST_ROLL, PRE, NONE = cluster([ZK, ZK, MIG], UP3, -1), cluster([ZK] * 3, UP3, -1), cluster([ZK] * 3, (None,) * 3)


@pytest.mark.parametrize(
    ("view", "phase", "agreeing"),
    [
        (PRE, Phase.PRE_MIGRATION, {2}),
        (FIRST_ROLL, Phase.FIRST_ROLL, {2}),
        (cluster([MIG] * 3, UP3, -1), Phase.COPY, {1, 2}),
        (cluster([MIG] * 3, UP3, 50), Phase.DUAL_WRITE_ZOOKEEPER, {1}),
        (HYBRID, Phase.HYBRID, {1}),
        (DUAL, Phase.DUAL_WRITE, {1}),
        (FINAL, Phase.FINALIZED, {3}),
        (NONE, Phase.ZOOKEEPER, {0, 1, 2, 3, 4}),
        (replace(DUAL, zk=None), Phase.UNKNOWN, {0, 1, 2, 3, 4}),
    ],
)
def test_each_phase_has_the_states_that_were_measured(view: ClusterView, phase: Phase, agreeing: set[int]) -> None:
    assert position_of(view).phase is phase
    assert {state for state in range(5) if not find_contradictions(view, {3000: KafkaGauges(state)})} == agreeing


def test_no_phase_in_the_order_of_a_migration_is_forgotten() -> None:
    assert EXPECTED.keys() | {Phase.ZOOKEEPER} == {phase for phase, number in PHASES.items() if number >= 0}


@pytest.mark.parametrize(("lag", "found"), [(None, []), (0, []), (50, []), (51, ["controller 3001"])])
def test_only_a_lag_that_kmigrate_does_not_see_is_a_contradiction(lag: int | None, found: list[str]) -> None:
    gauges = {3000: KafkaGauges(1, 0), 3001: KafkaGauges(1, lag), 3002: KafkaGauges(unread="no answer")}
    assert [reason.node for reason in find_contradictions(DUAL, gauges)] == found
    unknown = replace(DUAL, quorum=None)
    assert not [reason for reason in find_contradictions(unknown, gauges) if "Lag" in reason.text]


def test_what_was_read_and_what_was_not_is_said() -> None:
    gauges = {3000: KafkaGauges(1, 0), 3001: KafkaGauges(4, 51), 3002: KafkaGauges(unread="no answer")}
    assert (
        describe_witness(DUAL, gauges) == "Kafka's own gauges agree on 1 of 3 controllers. Not read: controller 3002 (no answer)."
    )
    assert "ZkMigrationState 4 (ZooKeeper); kmigrate observes the phase 'dual-write, all brokers KRaft'" in str(
        find_contradictions(DUAL, gauges)[0]
    )
