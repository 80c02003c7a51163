"""`groups set-mode`: every group that is ready, in waves; and a wave that does not settle is set back. ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from airflow_provider_kmigrate.clients.group_reads import read_groups
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen
from airflow_provider_kmigrate.core.member.registration import GroupPaths
from airflow_provider_kmigrate.groups import Clock, build_parser, main, switch_modes
from tests.groups.emergency_group import World

NAMES = ["ads", "billing", "mail"]


class Organisation(World):
    """Three groups that follow the mode, in one ZooKeeper."""

    def __init__(self) -> None:
        super().__init__(committed={})
        for name in NAMES:
            self.in_kafka_mode(name)
            self.ensemble.put(GroupPaths(name).mode, b"zookeeper")
        self.deaf: set[str] = set()
        self.follow()

    def follow(self) -> None:
        every, self.groups = self.groups, [name for name in self.groups if name not in getattr(self, "deaf", ())]
        super().follow()
        self.groups = every

    def observe_all(self, names: Collection[str] | None) -> dict[str, GroupSeen]:
        return {name: self.observe(name) for name in (names if names is not None else read_groups(self.zk))}

    def set_modes(self, *options: str) -> int:
        argv = ["set-mode", "--zookeeper", "h:1", "--bootstrap", "h:2", "--wait", "2", *options]
        clock = Clock(lambda: self.now, self.wait)
        return switch_modes(self.zk, self.observe_all, build_parser().parse_args(argv), clock)  # type: ignore[arg-type]

    def modes(self) -> list[bytes]:
        return [(self.zk.read(GroupPaths(name).mode) or (b"",))[0] for name in NAMES]


def test_all_there_and_all_back_by_one_command_each(capsys: pytest.CaptureFixture[str]) -> None:
    world = Organisation()
    assert world.set_modes("kafka", "--all", "--wave", "2") == 0
    assert world.modes() == [b"kafka"] * 3
    said = capsys.readouterr().out
    assert "wave 1: ads, billing" in said
    assert "wave 2: settled in kafka mode" in said
    assert world.set_modes("zookeeper", "--all") == 0
    assert world.modes() == [b"zookeeper"] * 3
    assert world.zk.read("/_kmigrate/id/owner") is None, "the cluster is free again"


def test_a_plan_alone_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    world = Organisation()
    assert world.set_modes("kafka", "--all", "--dry-run") == 0
    assert world.modes() == [b"zookeeper"] * 3
    assert "3 groups in 1 wave to set" in capsys.readouterr().out


def test_members_that_do_not_say_since_when_they_are_there_stay(capsys: pytest.CaptureFixture[str]) -> None:
    world = Organisation()
    assert world.set_modes("kafka", "--all", "--stable-for", "24h") == 0
    assert world.modes() == [b"zookeeper"] * 3
    assert "3 stay" in capsys.readouterr().out
    assert world.set_modes("kafka", "--group", "mail", "--stable-for", "24h") == 1, "it was asked for by name"


def test_a_wave_that_does_not_settle_is_set_back_and_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    world = Organisation()
    world.deaf = {"billing"}
    assert world.set_modes("kafka", "--all", "--wave", "1") == 1
    assert world.modes() == [b"kafka", b"zookeeper", b"zookeeper"]
    assert "Stopped at wave 2: billing did not settle in kafka mode" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [["kafka"], ["kafka", "--all", "--group", "a"], ["both", "--all"], ["kafka", "--all", "--wave", "0"]]
)
def test_what_does_not_say_enough_is_an_error(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        Organisation().set_modes(*options)


def test_a_duration_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--zookeeper", "h:1", "--bootstrap", "h:2", "--all", "--stable-for"]
    parsed = [build_parser().parse_args(["set-mode", "kafka", *options, text]).stable_for for text in ("24h", "90", "1h30m")]
    assert parsed == [86_400.0, 90.0, 5_400.0]
    with pytest.raises(SystemExit):
        build_parser().parse_args(["set-mode", "kafka", *options, "soon"])
    assert "'soon' is no duration such as 24h" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ".", "..", "../brokers", "a/b", "a\n[K31] forged", "\x1b[31m"])
@pytest.mark.parametrize(
    "words",
    [["scan"], ["copy-offsets", "--to", "kafka"], ["zookeeper-mode"], ["release"], ["reset-offsets"], ["set-mode", "kafka"]],
    ids=lambda words: words[0],
)
def test_what_is_no_znode_is_no_group(words: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else kazoo ends the command with an error of its own, or reads another znode."""
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--group", name, "--zookeeper", "127.0.0.1:1", "--bootstrap", "127.0.0.1:1"])
    said = capsys.readouterr().err
    assert "is no id of a group that ZooKeeper can have" in said
    assert "\x1b" not in said
