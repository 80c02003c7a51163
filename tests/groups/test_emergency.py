"""`groups zookeeper-mode`: what it writes, and what it says, with ZooKeeper in memory and a member that follows the mode there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.clients.group_reads import groups_in
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, KafkaGroup
from airflow_provider_kmigrate.core.coordination.registration import (
    GroupPaths,
    MemberProgress,
    Registration,
    mode_of,
    write_progress,
    write_registration,
)
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.move import held
from airflow_provider_kmigrate.exceptions import Fenced
from airflow_provider_kmigrate.groups import _COMMANDS, parser, set_back
from tests.clients.memory_zookeeper import Ensemble, MemoryZooKeeper

GROUP, WANTS = "billing", Registration("static", {"t": 1})
PATHS = GroupPaths(GROUP)
STABLE, DEAD = KafkaGroup("Stable"), KafkaGroup("Dead")


class World:
    """A group of one migrating member that follows the mode; `kafka`: what its coordinator reports at each observation, the last one for ever."""

    def __init__(self, *kafka: KafkaGroup | None, committed: dict[TopicPartition, int] | None = None) -> None:
        self.ensemble = Ensemble("id")
        self.zk = MemoryZooKeeper(self.ensemble)
        self._kafka, self._committed = list(kafka or (STABLE,)), committed
        self.groups: list[str] = []

    def in_kafka_mode(self, name: str = GROUP) -> World:
        paths = GroupPaths(name)
        self.groups.append(name)
        self.ensemble.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}')
        self.ensemble.put(f"{paths.ids}/{name}_a", write_registration(WANTS))
        self.ensemble.put(f"{paths.root}/owners/t/0", f"{name}_a-0".encode())
        self.ensemble.put(paths.mode, b"kafka")
        self.follow()
        return self

    def follow(self, seconds: float = 0.0) -> None:
        """What the member does meanwhile."""
        del seconds
        for name in self.groups:
            mode = self.ensemble.znodes[GroupPaths(name).mode]
            progress = MemberProgress(mode.zxid, mode_of(mode.data), settled=True)
            self.ensemble.put(f"{GroupPaths(name).migration_ids}/{name}_a", write_progress(WANTS, progress))

    def observe(self, name: str) -> GroupSeen:
        kafka = self._kafka.pop(0) if len(self._kafka) > 1 else self._kafka[0]
        return GroupSeen(name, groups_in(self.zk, [name])[name], kafka, self._committed, {})

    @property
    def mode(self) -> bytes | None:
        found = self.zk.read(PATHS.mode)
        return found[0] if found else None

    def set_back(self, *options: str) -> int:
        argv = ["zookeeper-mode", "--zookeeper", "h:1", "--bootstrap", "h:2", "--group", GROUP, "--wait", "0.05", *options]
        return set_back(self.zk, self.observe, parser().parse_args(argv), sleep=self.follow)  # type: ignore[arg-type]


def heard(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_it_is_written_and_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(committed={}).in_kafka_mode()
    assert world.set_back() == 0
    assert world.mode == b"zookeeper"
    said = heard(capsys)
    assert "Written." in said
    assert "all its members have settled" in said
    assert world.zk.read("/_kmigrate/id/owner") is None, "the cluster is free again"


def test_a_member_that_does_not_follow_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(committed={}).in_kafka_mode()
    world.follow = lambda seconds=0.0: None  # type: ignore[method-assign]
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


def test_by_force_it_is_written_without_the_members_in_kafka(capsys: pytest.CaptureFixture[str]) -> None:
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
    (reason,) = held(world.observe(GROUP), "dag/run")
    assert "groups zookeeper-mode/" in reason.text
    argv = ["release", "--zookeeper", "h:1", "--bootstrap", "h:2", "--group", GROUP]
    for expected in ("may migrate again", "was not rolled back"):
        assert _COMMANDS["release"](world.zk, {}, parser().parse_args(argv)) == 0  # type: ignore[arg-type]
        assert expected in heard(capsys)
        assert held(world.observe(GROUP), "dag/run") == ()
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
