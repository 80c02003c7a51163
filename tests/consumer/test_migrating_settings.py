"""Settings of the migrating consumer: taken apart, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kmigrate.consumer.migrating.absent import Absent
from airflow_provider_kmigrate.consumer.migrating.settings import parse, registration_of
from airflow_provider_kmigrate.core.coordination.assignors import Strategy
from airflow_provider_kmigrate.core.coordination.registration import Registration
from airflow_provider_kmigrate.exceptions import Refused

LEAST = {"group.id": "g", "zookeeper.connect": "zk1:2181,zk2:2181/kafka"}


def test_settings_are_taken_apart() -> None:
    given = {
        **LEAST,
        "zookeeper.session.timeout.ms": "4000",
        "partition.assignment.strategy": "roundrobin",
        "auto.commit.enable": "false",
        "coordination.migration.enabled": "true",
        "coordination.migration.bootstrap.servers": "other:9092",
        "bootstrap.servers": "b:9092",
    }
    found = parse(given)
    assert (found.zookeeper.hosts, found.zookeeper.chroot, found.zookeeper.session_timeout) == (
        "zk1:2181,zk2:2181",
        "/kafka",
        4.0,
    )
    assert (found.strategy, found.auto_commit, found.migrates) == (Strategy.ROUND_ROBIN, False, True)
    assert found.data["bootstrap.servers"] == "b:9092"
    assert found.embedded["bootstrap.servers"] == "other:9092"
    assert not {name for name in found.data if name.startswith(("zookeeper.", "coordination."))}


@pytest.mark.parametrize(
    "wrong",
    [
        {"group.id": ""},
        {"zookeeper.connect": ""},
        {"group.instance.id": "x"},
        {"group.protocol": "consumer"},
        {"partition.assignment.strategy": "cooperative-sticky"},
        {"offsets.storage": "kafka"},
        {"coordination.migration.partition.assignment.strategy": "range"},
        {"coordination.migration.stage": "old"},
        {"zookeeper.ssl.crl.enable": "true"},
    ],
)
def test_what_it_cannot_do_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(Refused) as refused:
        parse({**LEAST, **wrong})
    ((name, _),) = wrong.items()
    (reason,) = refused.value.reasons
    assert name in reason.text
    assert reason.why
    assert reason.remedy


def test_an_old_consumers_stores_are_no_settings_of_ours() -> None:
    found = parse({**LEAST, "offsets.storage": "ZooKeeper", "dual.commit.enabled": "false"})
    assert not {"offsets.storage", "dual.commit.enabled"} & {*found.data, *found.embedded}


@pytest.mark.parametrize(
    ("given", "limit_ms"),
    [
        ({}, 15_000),
        ({"session.timeout.ms": "6000"}, 2_000),
        ({"session.timeout.ms": "6000", "fetch.wait.max.ms": 4_000}, 5_500),
        ({"socket.timeout.ms": 1_000}, 1_000),
        ({"coordination.migration.session.timeout.ms": 30_000}, 10_000),
        ({"coordination.migration.socket.timeout.ms": 20_000}, 20_000),
    ],
)
def test_a_commit_that_nobody_answers_takes_less_than_a_session(given: dict[str, Any], limit_ms: int) -> None:
    assert parse({**LEAST, **given}).embedded["socket.timeout.ms"] == limit_ms


@pytest.mark.parametrize("name", ["assign", "seek", "store_offsets", "unassign", "unsubscribe"])
def test_what_it_does_not_have_is_refused_by_name(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no {name}\\. [A-Z]"):
        getattr(Absent(), name)
    assert not hasattr(Absent(), "whatever")


def test_a_subscription_is_topics_or_one_wildcard() -> None:
    assert registration_of(["a", "b"], 7) == Registration("static", {"a": 1, "b": 1})
    assert registration_of(["^app.*$"], 7) == Registration("white_list", {"app.*": 1})
    for wrong in (["^a", "b"], ["^a{x"]):
        with pytest.raises(Refused):
            registration_of(wrong, 7)
