"""`groups zookeeper-mode`: what it writes, and what it says, with ZooKeeper in memory and a member that follows the mode there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.groups.move import hold_reasons
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup
from airflow_provider_kmigrate.core.member.registration import (
    GroupPaths,
)
from airflow_provider_kmigrate.exceptions import Fenced
from airflow_provider_kmigrate.groups import _COMMANDS, build_parser
from tests.groups.emergency_group import DEAD, GROUP, PATHS, STABLE, World


def heard(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_the_zookeeper_mode_command_writes_the_mode_and_waits_for_the_members(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(committed={}).in_kafka_mode()
    assert world.set_back() == 0
    assert world.mode == b"zookeeper"
    said = heard(capsys)
    assert "Written." in said
    assert "all its members have settled" in said
    assert world.zk.read("/_kmigrate/id/owner") is None, "the cluster is free again"


def test_a_member_that_does_not_follow_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(committed={}).in_kafka_mode()
    world.follow = lambda: None  # type: ignore[method-assign]
    assert world.set_back() == 2
    assert world.mode == b"zookeeper"
    assert "have settled" not in heard(capsys)


def test_kafkas_offsets_are_not_needed() -> None:
    world = World(committed=None).in_kafka_mode()
    assert (world.set_back(), world.mode) == (0, b"zookeeper")


def test_where_nothing_can_be_decided_nothing_is_written_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(None, committed={}).in_kafka_mode()
    before = world.ensemble.znodes[PATHS.mode]
    assert world.set_back() == 2
    assert (world.mode, world.ensemble.znodes[PATHS.mode]) == (b"kafka", before)
    said = heard(capsys)
    assert "nothing was written yet. [K30]" in said
    assert "NOTHING WAS WRITTEN. [K30]" in said


def test_a_coordinator_that_comes_back_in_time_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(None, None, STABLE, committed={}).in_kafka_mode()
    assert (world.set_back(), world.mode) == (0, b"zookeeper")
    assert "NOTHING" not in heard(capsys)


def test_zookeeper_mode_is_written_by_force_if_the_members_in_kafka_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(None, committed={}).in_kafka_mode()
    assert (world.set_back("--force"), world.mode) == (2, b"zookeeper")
    said = heard(capsys)
    assert "Written." in said
    assert "[K30]" in said, "whether they settle is unknown"


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_nothing_is_set_for_an_unknown_group(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    world = World(DEAD, committed={})
    assert world.set_back(*options) == 1
    assert "NOTHING WAS WRITTEN. [F09]" in heard(capsys)
    assert (world.mode, world.zk.children("/consumers")) == (None, [])


def test_a_group_that_is_refused_keeps_no_other_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The first group does not exist, the third one has a Kafka consumer."""
    world = World(DEAD, committed={}).in_kafka_mode("mail").in_kafka_mode("ads")
    plain = KafkaGroup("Stable", (KafkaMember("uuid", "app", frozenset(), "h"),))
    observe = world.observe
    world.observe = lambda name: replace(observe(name), kafka=plain) if name == "ads" else observe(name)  # type: ignore[method-assign]
    assert world.set_back("--group", "mail", "--group", "ads", "--group", "mails") == 1
    said = heard(capsys)
    assert world.zk.read(GroupPaths("mail").mode) == (b"zookeeper", 1)
    assert "mail is in zookeeper mode" in said
    assert "billing: NOTHING WAS WRITTEN. [F09]" in said
    assert "ads: NOTHING WAS WRITTEN. [K58]" in said
    assert "mails: NOTHING WAS WRITTEN. [F09]" in said


def test_a_group_that_was_reset_is_not_migrated_by_the_next_run_until_it_is_released(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(committed={}).in_kafka_mode()
    world.set_back()
    (reason,) = hold_reasons(world.observe(GROUP), "dag/run")
    assert "groups zookeeper-mode/" in reason.text
    argv = ["release", "--zookeeper", "h:1", "--bootstrap", "h:2", "--group", GROUP]
    for expected in ("may migrate again", "No run holds group"):
        assert _COMMANDS["release"](world.zk, {}, build_parser().parse_args(argv)) == 0  # type: ignore[arg-type]
        assert expected in heard(capsys)
        assert hold_reasons(world.observe(GROUP), "dag/run") == ()
    assert world.zk.read("/_kmigrate/id/owner") is None, "the cluster is free again"


def test_a_run_that_owns_the_cluster_keeps_it_until_an_operator_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(committed={}).in_kafka_mode()
    world.ensemble.put("/_kmigrate/id/owner", b'{"owner": "dag/run", "since": "?", "host": "?"}')
    world.ensemble.put("/_kmigrate/id/live", b"")
    world.ensemble.put("/_kmigrate/id/epoch", b"")
    with pytest.raises(Fenced, match="dag/run"):
        world.set_back()
    assert world.mode == b"kafka"
    assert (world.set_back("--take-over"), world.mode) == (0, b"zookeeper")
    assert "dag/run" in heard(capsys)
