"""`groups reset-offsets`: what an operator records for the next holders of partitions, and takes away again."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate import groups as command
from airflow_provider_kmigrate.clients.group_reads import read_groups
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup
from airflow_provider_kmigrate.core.member.registration import GroupPaths
from airflow_provider_kmigrate.exceptions import Refused
from tests.groups.emergency_group import GROUP, World

PATH = GroupPaths(GROUP).reset(TopicPartition("t", 0))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    there = World().in_kafka_mode()

    def seen(zk: object, properties: object, names: list[str]) -> dict[str, GroupSeen]:
        del zk, properties
        (name,) = names
        return {
            name: GroupSeen(name, read_groups(there.zk, [name])[name], KafkaGroup("Stable"), {}, {TopicPartition("t", 0): 10})
        }

    monkeypatch.setattr(command, "seen", seen)
    return there


def ask(world: World, *options: str) -> int:
    chosen = command.build_parser().parse_args(
        ["reset-offsets", "--zookeeper", "h:1", "--bootstrap", "h:2", "--group", GROUP, *options]
    )
    return command._COMMANDS["reset-offsets"](world.zk, {}, chosen)  # type: ignore[arg-type]


def test_a_reset_is_recorded_reported_changed_and_deleted(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for options, there, message in (
        ((), None, "none"),
        (("--at", "t-0=3"), b"3", "t-0 at 3"),
        (("--at", "t-0=4"), b"4", "t-0 at 4"),
        ((), b"4", "t-0 at 4"),
        (("--delete",), None, "none"),
        (("--delete",), None, "none"),
    ):
        assert ask(world, *options) == 0
        found = world.zk.read(PATH)
        assert (found[0] if found else None) == there
        assert capsys.readouterr().out == f"{GROUP}: recorded resets that no member has applied: {message}\n"
    assert world.zk.read("/_kmigrate/id/owner") is None, "the cluster is free again"


def test_an_offset_beyond_the_log_is_refused(world: World) -> None:
    with pytest.raises(Refused, match="t-0 ends at 10, and 11 is beyond it"):
        ask(world, "--at", "t-0=11")
    assert world.zk.read(GroupPaths(GROUP).resets) is None


@pytest.mark.parametrize("text", ["t=3", "t-0", "t-0=x", "t-²=3", "-0=3", "t-0=-1"])
def test_what_is_no_partition_with_an_offset_is_asked_for(text: str, world: World) -> None:
    with pytest.raises(SystemExit):
        ask(world, "--at", text)
