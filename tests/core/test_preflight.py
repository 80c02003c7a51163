"""One healthy cluster; each defect gives exactly its code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    ClusterView,
    Controller,
    CoordinatorFacts,
    Migration,
    NodeFiles,
    Partition,
)
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, TRANSACTIONS, hash_group
from airflow_provider_kmigrate.core.preflight.checks import blocking_findings, protocol_version, run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts, Severity, has_migration_begun
from tests.core.preflight_views import (
    AMBIGUOUS,
    DEFECTS,
    FORMATTED,
    UNTOUCHED,
    VERSION_3_8,
    Case,
    Change,
    codes,
    config,
    config_1,
    counted,
    healthy,
    orders,
    seen,
    started,
    zk,
)

OLD = {i: config(i, inter_broker_protocol_version="3.4") for i in range(3)}


@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_healthy_cluster_has_no_finding(size: int) -> None:
    assert run_checks(*healthy(size)) == ()


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in DEFECTS], ids=[row[0] for row in DEFECTS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


def test_an_old_protocol_version_blocks() -> None:
    view, facts = healthy()
    files = {i: replace(b, files=NodeFiles(OLD[i], FORMATTED)) for i, b in view.brokers.items()}
    assert codes(started(replace(view, brokers=files), replace(facts, configs=OLD))) == ["B1b"]


def test_an_ambiguous_count_of_a_topic_that_was_changed_is_a_warning() -> None:
    (finding,) = run_checks(*zk(topic_versions={OFFSETS.name: 2})(*seen(coordinators=counted(AMBIGUOUS))(*healthy())))
    assert (finding.code, finding.severity) == ("K02", Severity.WARN)


def test_an_ambiguous_count_that_differs_from_the_configured_one_is_not_known() -> None:
    view, facts = zk(topic_versions={OFFSETS.name: 2})(*seen(coordinators=counted(AMBIGUOUS))(*healthy()))
    configs = {broker: {**keys, "offsets.topic.num.partitions": "25"} for broker, keys in facts.configs.items()}
    found = next(each for each in run_checks(view, replace(facts, configs=configs)) if each.code == "K02")
    assert found.severity is Severity.UNKNOWN


def test_a_sleeping_expansion_is_refused_with_the_groups_that_would_move() -> None:
    groups = tuple(f"g{number}" for number in range(8))
    view, facts = seen(coordinators=counted(dict.fromkeys(range(3), frozenset({25})), groups))(*healthy())
    (finding,) = run_checks(view, facts)
    moved = [group for group in groups if hash_group(group) % 25 != hash_group(group) % 50]
    assert finding.code == "K01"
    assert finding.reason.text.startswith(
        "Brokers that compute with 25 partitions of __consumer_offsets, which has 50: 0, 1, 2. Of 8 "
    )
    assert f"{len(moved)} served from the old partition: {', '.join(moved)}; " in finding.reason.text
    assert f"; {8 - len(moved)} in the same partition by every count." in finding.reason.text
    assert f"restarted, {len(moved)} groups are in partitions without their offsets" in finding.reason.text
    assert "Restart no broker" in finding.reason.next_step


def test_the_transactions_topic_is_judged_alike() -> None:
    view, facts = healthy()
    rows = tuple(Partition(TRANSACTIONS.name, number, number % 3, (0, 1, 2), (0, 1, 2)) for number in range(5))
    known = {OFFSETS.name: view.coordinators.counts[OFFSETS.name], TRANSACTIONS.name: {0: frozenset({5}), 1: frozenset({3})}}
    made = replace(view, partitions=(*view.partitions, *rows))
    assert [found.code for found in run_checks(made, facts)] == ["K02"], "not read"
    assert [found.code for found in run_checks(replace(made, coordinators=CoordinatorFacts(known)), facts)] == ["K77"]


def test_a_single_broker_may_migrate_with_its_outage_named() -> None:
    found = run_checks(*healthy(1))

    assert [finding.code for finding in found] == ["W1"]
    assert blocking_findings(found) == ()
    assert "whole cluster" in found[0].reason.text


def test_blockers_come_first_and_every_finding_says_how_to_fix_it() -> None:
    case = orders(replicas=(0,), isr=())(*healthy())
    found = run_checks(*case)

    assert [finding.severity for finding in found] == [Severity.BLOCK, Severity.WARN]
    assert blocking_findings(found) == found[:1]
    assert all(finding.reason.meaning and finding.reason.next_step and finding.source for finding in found)
    assert "S02" in str(found[0])


def test_many_partitions_are_counted_and_a_few_named() -> None:
    view, facts = healthy()
    behind = tuple(replace(partition, isr=(partition.leader,)) for partition in view.partitions or ())
    (finding,) = run_checks(replace(view, partitions=behind), facts)

    assert "52 partitions" in finding.reason.text
    assert "and 44 more" in finding.reason.text


def rolled(view: ClusterView, facts: PreflightFacts) -> Case:
    """Broker 0 is a KRaft broker, 1 in migration mode, and the first copy is done."""
    kraft = NodeFiles(
        {
            "process.roles": "broker",
            "node.id": "0",
            "controller.quorum.voters": "3000@c:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        },
        meta=FORMATTED,
    )
    assert view.zk is not None
    brokers = {
        0: replace(view.brokers[0], mode=BrokerMode.KRAFT, in_zookeeper=False, files=kraft),
        1: replace(view.brokers[1], mode=BrokerMode.MIGRATION),
        2: view.brokers[2],
    }
    controllers = {i: Controller(i, UNTOUCHED, files=NodeFiles(has_metadata_log=True)) for i in view.controllers}
    in_zookeeper = replace(view.zk, broker_ids=(1, 2), migration=Migration(3000, 4, 97, 4))
    facts = replace(facts, configs={**facts.configs, 0: {"process.roles": "broker", "inter.broker.protocol.version": "3.0-IV1"}})
    return replace(view, brokers=brokers, controllers=controllers, zk=in_zookeeper), facts


def test_a_run_that_was_stopped_may_begin_again() -> None:
    case = rolled(*healthy())

    assert has_migration_begun(case[0])
    assert run_checks(*case) == ()


def test_controllers_are_formatted_for_the_protocol_version_of_all_brokers() -> None:
    _, facts = healthy()

    assert protocol_version(facts) == "3.9-IV0"
    assert protocol_version(rolled(*healthy())[1]) == "3.9-IV0"
    assert protocol_version(config_1(VERSION_3_8)(*healthy())[1]) is None
    assert protocol_version(config_1(None)(*healthy())[1]) is None
    assert protocol_version(replace(facts, configs={})) is None
